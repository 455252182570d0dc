"""Frames on disk: order, what survives, bounds, and what is lost is counted."""

import os
import resource
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.producers.backlog import Sealed
from mlops_events.producers.spool import Queue, Spool, Stored, leftovers
from mlops_events.producers.spooled import SpooledBacklog
from mlops_events.producers.transport import OutRecord

NAME = "0" * 32


@pytest.fixture
def new_spool(tmp_path: Path) -> Iterator[Callable[..., Spool]]:
    """Return a function that makes the spool of an emitter; all are closed at the end."""
    made: list[Spool] = []

    def make(name: str = NAME, **settings: Any) -> Spool:
        spool = Spool(
            tmp_path / "spool",
            name,
            **{"limit": 1 << 30, "drops": "oldest", "sync": False, **settings},
        )
        made.append(spool)
        return spool

    yield make
    for spool in made:
        spool.close()


def stored(seq: int, size: int = 100) -> Stored:
    """Return a frame of as many events as its number, but for the first."""
    return Stored(seq, max(1, seq), bytes([seq % 251 + 1]) * size)


def drain(queue: Queue) -> list[int]:
    """Take everything out and return the numbers."""
    seqs = []
    while (frame := queue.first()) is not None:
        seqs.append(frame.seq)
        queue.remove(frame)
    return seqs


def files(tmp_path: Path) -> list[Path]:
    """Return the segments below a folder, oldest first."""
    return sorted((tmp_path / "spool").rglob("*.seg"))


def left(tmp_path: Path) -> list[Stored]:
    """Return and remove what dead processes have left."""
    found = []
    for leftover in leftovers(tmp_path / "spool"):
        found += list(leftover.frames())
        leftover.close(done=True)
    return found


def test_frames_come_back_in_order_and_leave_nothing(
    new_spool: Callable[..., Spool], tmp_path: Path
) -> None:
    """A segment goes with its last frame, the folder with the emitter."""
    spool = new_spool(limit=40_000)  # segments of 5,000 bytes
    queue = spool.queue("observation")
    for seq in range(100):
        queue.append(stored(seq, 300))
    assert len(files(tmp_path)) > 5

    assert drain(queue) == list(range(100))
    assert files(tmp_path) == []
    spool.close()
    assert list((tmp_path / "spool").iterdir()) == []


def test_nothing_is_made_on_disk_before_the_first_frame(
    new_spool: Callable[..., Spool], tmp_path: Path
) -> None:
    """A program that emits nothing leaves no folders behind."""
    new_spool().queue("log")

    assert not (tmp_path / "spool").exists()


def test_what_was_written_survives_kill_9(tmp_path: Path) -> None:
    """Every frame that was stored is there, in order, under its number."""
    program = f"""
import os, signal
from pathlib import Path
from mlops_events.producers.spool import Spool, Stored
spool = Spool(Path({str(tmp_path / "spool")!r}), {NAME!r}, limit=1 << 20, drops="newest", sync=False)
queue = spool.queue("observation")
for seq in range(500):
    queue.append(Stored(seq, 1, os.urandom(500)))
    print(seq, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    told = [int(line) for line in ended.stdout.split()]
    assert told == list(range(500))
    assert [frame.seq for frame in left(tmp_path)] == told


@pytest.mark.parametrize("damage", ["cut", "zeros", "flipped", "garbage"])
def test_a_damaged_tail_costs_what_it_hits_only(
    new_spool: Callable[..., Spool], tmp_path: Path, damage: str
) -> None:
    """What stands before it is read, and so are the segments behind it."""
    spool = new_spool(limit=16_000)  # segments of 2,000 bytes
    queue = spool.queue("observation")
    for seq in range(30):
        queue.append(stored(seq, 300))
    spool.close()
    first = files(tmp_path)[0]
    data = first.read_bytes()
    hurt = {
        "cut": data[:-100],
        "zeros": data[:-300] + bytes(300),
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "garbage": data + b"\x07" * 50,
    }[damage]
    first.write_bytes(hurt)

    whole = len(data) // 320
    lost = [] if damage == "garbage" else [whole - 1]
    assert [f.seq for f in left(tmp_path)] == [seq for seq in range(30) if seq not in lost]


def test_an_own_segment_that_cannot_be_read_is_counted(
    new_spool: Callable[..., Spool], tmp_path: Path
) -> None:
    """Somebody deleted a file: its events are lost, and the rest goes on."""
    queue = new_spool(limit=16_000).queue("observation")
    for seq in range(20):
        queue.append(stored(seq, 300))
    gone = files(tmp_path)[0]
    count = gone.stat().st_size // 320
    gone.unlink()

    assert drain(queue) == list(range(count, 20))
    assert queue.lost == sum(max(1, seq) for seq in range(count))


def test_beyond_its_bound_the_oldest_go_and_are_counted(
    new_spool: Callable[..., Spool], tmp_path: Path
) -> None:
    """The disk never holds more than the limit, and each lost event is in the count."""
    queue = new_spool(limit=16_000).queue("observation")
    for seq in range(200):
        queue.append(stored(seq, 300))
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 16_000

    kept = drain(queue)
    assert kept == list(range(kept[0], 200))
    assert queue.lost == sum(max(1, seq) for seq in range(kept[0]))


def test_a_frame_dropped_while_it_was_sent_is_not_counted_twice(
    new_spool: Callable[..., Spool],
) -> None:
    """It was acknowledged after all, so it is not lost."""
    queue = new_spool(limit=16_000).queue("observation")
    queue.append(stored(0, 300))
    sending = queue.first()
    assert sending is not None
    for seq in range(1, 100):
        queue.append(stored(seq, 300))
    queue.remove(sending)

    kept = drain(queue)
    assert queue.lost == sum(range(1, kept[0]))


def test_with_drops_newest_a_full_spool_refuses(new_spool: Callable[..., Spool]) -> None:
    """What is there stays."""
    queue = new_spool(limit=16_000, drops="newest").queue("observation")
    for seq in range(50):
        queue.append(stored(seq, 300))
    with pytest.raises(OSError, match="16000 bytes"):
        queue.append(stored(50, 300))

    assert queue.lost == 0
    assert drain(queue) == list(range(50))


def test_kinds_share_the_bound(new_spool: Callable[..., Spool], tmp_path: Path) -> None:
    """The oldest segment goes, whatever its kind."""
    spool = new_spool(limit=16_000)
    logs, rows = spool.queue("log"), spool.queue("observation")
    logs.append(stored(7, 300))
    for seq in range(100):
        rows.append(stored(seq, 300))

    assert (logs.lost, logs.first()) == (7, None)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 16_000


def test_a_full_disk_leaves_no_half_frame(tmp_path: Path) -> None:
    """A write that stops in the middle is undone; later frames can be read."""
    program = f"""
import resource, signal
from pathlib import Path
from mlops_events.producers.spool import Spool, Stored
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path({str(tmp_path / "spool")!r}), {NAME!r}, limit=1 << 20, drops="newest", sync=False)
queue = spool.queue("observation")
queue.append(Stored(0, 1, b"a" * 1000))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
try:
    queue.append(Stored(1, 1, b"b" * 1000))
except OSError:
    print("refused")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
queue.append(Stored(2, 1, b"c" * 1000))
spool.close()
"""
    assert hasattr(resource, "RLIMIT_FSIZE")
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )

    assert ended.stdout == "refused\n"
    assert [(f.seq, f.value[:1]) for f in left(tmp_path)] == [(0, b"a"), (2, b"c")]


def test_the_folder_of_a_living_process_is_left_alone(
    new_spool: Callable[..., Spool], tmp_path: Path
) -> None:
    """Only what nobody holds is a leftover, and only one process takes it."""
    mine, other = new_spool("a" * 32), new_spool("b" * 32)
    mine.queue("log").append(stored(1))
    other.queue("log").append(stored(2))
    other.close()
    first = leftovers(tmp_path / "spool")
    taken = next(first)

    assert [frame.seq for frame in taken.frames()] == [2]
    assert list(leftovers(tmp_path / "spool")) == []
    taken.close(done=True)
    assert [p.name for p in (tmp_path / "spool").iterdir()] == ["a" * 32]


def test_a_leftover_that_was_not_sent_to_its_end_stays(
    new_spool: Callable[..., Spool], tmp_path: Path
) -> None:
    """Who stops in the middle leaves the rest to the next one, which begins with its file."""
    spool = new_spool(limit=16_000)
    queue = spool.queue("observation")
    for seq in range(20):
        queue.append(stored(seq, 300))
    spool.close()
    (leftover,) = leftovers(tmp_path / "spool")
    frames = leftover.frames()
    sent = [next(frames).seq for _ in range(10)]
    frames.close()  # type: ignore[attr-defined]  # it is a generator
    leftover.close(done=False)

    again = [frame.seq for frame in left(tmp_path)]
    assert again == list(range(again[0], 20))
    assert 0 < again[0] <= sent[-1]


def test_a_forked_child_does_not_keep_its_parents_folder(
    new_spool: Callable[..., Spool], tmp_path: Path
) -> None:
    """After the parent's end the folder is a leftover, though the child lives on."""
    gone, done = os.pipe(), os.pipe()
    spool = new_spool()
    spool.queue("log").append(stored(3))
    child = os.fork()
    if child == 0:
        spool.abandon()
        os.write(gone[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(gone[0], 1)
    spool.close()

    assert [frame.seq for frame in left(tmp_path)] == [3]
    os.write(done[1], b"x")
    assert os.waitpid(child, 0)[1] == 0
    for end in (*gone, *done):
        os.close(end)


class FickleQueue(Queue):
    """A queue on a disk that takes frames now and then."""

    takes = True

    def append(self, frame: Stored) -> None:
        if not self.takes:
            raise OSError("the disk is full, as the test wants it")
        super().append(frame)


def sealed(seq: int) -> Sealed:
    """Return a closed frame of one event."""
    record = OutRecord(topic="t", key=b"k", headers=[], value=b"%d" % seq * 10)
    return Sealed(seq=seq, count=1, record=record)


@given(st.lists(st.sampled_from(["append", "remove", "fill", "free"]), max_size=60))
def test_the_order_stays_whatever_the_disk_takes(
    tmp_path_factory: pytest.TempPathFactory, calls: list[str]
) -> None:
    """Frames leave as they came, from disk or memory; none is lost, none comes twice."""
    folder = tmp_path_factory.mktemp("order") / "spool"
    spool = Spool(folder, NAME, limit=1 << 20, drops="oldest", sync=False)
    queue = FickleQueue(spool, "log")
    told: list[OSError] = []
    backlog = SpooledBacklog(queue, restore=lambda one: sealed(one.seq), complain=told.append)
    waiting: deque[int] = deque()
    seq = 0
    for call in calls:
        if call == "append":
            backlog.append(sealed(seq))
            waiting.append(seq)
            seq += 1
        elif call in ("fill", "free"):
            queue.takes = call == "free"
        elif waiting:
            first = backlog.first()
            assert first is not None
            assert first.record == sealed(waiting[0]).record
            assert backlog.remove_first().seq == waiting.popleft()

        assert backlog.kept + backlog.events == len(waiting)
    assert backlog.lost == 0
    assert (backlog.first() is None) == (not waiting)
    spool.close()
