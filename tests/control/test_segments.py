"""The object log: what was written stays, what was torn goes, what is dead gives its space back."""

import resource
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlops_events.control.segments import DamagedStoreError, ObjectLog


def contents(log: ObjectLog) -> dict[str, bytes]:
    return {key: log.read(entry) for key, entry in log.scan("")}


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.seg"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ObjectLog]:
    """A log whose segments hold a few records each."""
    log = ObjectLog(tmp_path, segment_bytes=400)
    yield log
    log.close()


def test_an_object_is_read_as_it_was_written(small: ObjectLog) -> None:
    """Whole, in part, and its newest version."""
    small.put("a/x", b"old", modified_ms=1)
    entry = small.put("a/x", b"0123456789", modified_ms=2)

    assert small.get("a/x") is entry
    assert small.read(entry) == b"0123456789"
    assert small.read(entry, 2, 5) == b"234"
    assert small.read(entry, 8, 99) == b"89"
    assert entry.modified_ms == 2


def test_versions_never_repeat(tmp_path: Path) -> None:
    """A version names one content of a key for ever, across restarts too."""
    log = ObjectLog(tmp_path)
    first = log.put("k", b"1", modified_ms=0).version
    log.delete("k")
    log.close()

    log = ObjectLog(tmp_path)
    second = log.put("k", b"1", modified_ms=0).version
    log.close()

    assert second > first


def test_keys_are_listed_in_order_below_a_prefix(small: ObjectLog) -> None:
    """A prefix may be a folder, a part of one, or hold folders itself."""
    for key in ("b/2", "a/1", "b/10", "b/1", "b/c/1", "bb/1"):
        small.put(key, b"", modified_ms=0)

    assert [k for k, _ in small.scan("b/")] == ["b/1", "b/10", "b/2", "b/c/1"]
    assert [k for k, _ in small.scan("b/1")] == ["b/1", "b/10"]
    assert [k for k, _ in small.scan("", after="b/10")] == ["b/2", "b/c/1", "bb/1"]
    assert [k for k, _ in small.scan("a/", after="a/1")] == []
    assert list(small.keys("b/")) == ["b/1", "b/10", "b/2"]


def test_every_torn_end_is_cut_off_and_loses_nothing_before_it(tmp_path: Path) -> None:
    """However many bytes of the last record arrived, the records before it are there."""
    log = ObjectLog(tmp_path / "log")
    log.put("a/1", b"first", modified_ms=0)
    kept = log.disk_bytes
    log.put("a/2", b"second", modified_ms=0)
    log.close()
    whole = segments(tmp_path / "log")[0].read_bytes()

    for length in range(kept, len(whole)):
        folder = tmp_path / str(length)
        folder.mkdir()
        (folder / "0000000001.seg").write_bytes(whole[:length])
        log = ObjectLog(folder)
        found, torn = contents(log), log.torn_bytes
        log.put("a/3", b"third", modified_ms=0)
        log.close()
        log = ObjectLog(folder)
        after = contents(log)
        log.close()

        assert found == {"a/1": b"first"}
        assert torn == length - kept
        assert after == {"a/1": b"first", "a/3": b"third"}


def test_a_segment_whose_head_is_torn_is_started_again(tmp_path: Path) -> None:
    """The process may die between making the file and writing its first bytes."""
    log = ObjectLog(tmp_path)
    log.put("a", b"1", modified_ms=0)
    log.close()
    (tmp_path / "0000000002.seg").write_bytes(b"mle")

    log = ObjectLog(tmp_path)
    log.put("b", b"2", modified_ms=0)
    found = contents(log)
    log.close()

    assert found == {"a": b"1", "b": b"2"}


@pytest.mark.parametrize("back", [1, 8, 40])
def test_a_changed_byte_at_the_end_is_noticed(tmp_path: Path, back: int) -> None:
    """In the data, in the key or in the header of the last record."""
    log = ObjectLog(tmp_path)
    log.put("a/1", b"first", modified_ms=0)
    log.put("a/2", b"second", modified_ms=0)
    log.close()
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[-back] ^= 1
    path.write_bytes(content)

    log = ObjectLog(tmp_path)
    found = contents(log)
    log.close()

    assert found == {"a/1": b"first"}


def test_a_record_of_another_segment_is_not_taken_for_one(tmp_path: Path) -> None:
    """Bytes that a file system left behind carry another seed."""
    for name in ("one", "two"):
        log = ObjectLog(tmp_path / name)
        log.put("a", name.encode(), modified_ms=0)
        log.close()
    other = segments(tmp_path / "two")[0].read_bytes()
    with segments(tmp_path / "one")[0].open("ab") as file:
        file.write(other[12:])

    log = ObjectLog(tmp_path / "one")
    found = contents(log)
    log.close()

    assert found == {"a": b"one"}


def test_damage_in_a_complete_segment_is_an_error_that_names_it(tmp_path: Path) -> None:
    """It cannot come from a crash, so nothing is cut off in silence."""
    log = ObjectLog(tmp_path, segment_bytes=100)
    for number in range(3):
        log.put(f"a/{number}", bytes(60), modified_ms=0)
    log.close()
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)

    with pytest.raises(DamagedStoreError, match=path.name):
        ObjectLog(tmp_path)


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    """A full disk leaves the log as it was, and it goes on when there is room."""
    log = ObjectLog(tmp_path)
    log.put("a", b"old", modified_ms=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.disk_bytes + 1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            log.put("a", bytes(2000), modified_ms=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    during = contents(log)
    log.put("b", bytes(2000), modified_ms=0)
    log.close()

    log = ObjectLog(tmp_path)
    after = contents(log)
    log.close()

    assert during == {"a": b"old"}
    assert after == {"a": b"old", "b": bytes(2000)}


def test_the_oldest_objects_of_a_folder_go_by_one_record(tmp_path: Path) -> None:
    """They are gone after a restart too, and the other folders are as they were."""
    log = ObjectLog(tmp_path)
    for number in range(10):
        log.put(f"a/{number}", b"x", modified_ms=0)
        log.put(f"b/{number}", b"x", modified_ms=0)
    before = log.disk_bytes
    dropped = log.drop_oldest("a/", 7)
    cost = log.disk_bytes - before
    log.close()

    log = ObjectLog(tmp_path)
    left = list(log.keys("a/")), len(log.keys("b/"))
    log.close()

    assert dropped == 7
    assert cost < 60
    assert left == (["a/7", "a/8", "a/9"], 10)


def test_an_object_written_after_one_that_stays_is_not_dropped(tmp_path: Path) -> None:
    """Batches of one partition may be written out of order; none that must stay goes."""
    log = ObjectLog(tmp_path)
    for number in (0, 2, 1, 3):
        log.put(f"a/{number}", b"x", modified_ms=0)
    log.drop_oldest("a/", 2)
    now = list(log.keys("a/"))
    log.close()

    log = ObjectLog(tmp_path)
    later = list(log.keys("a/"))
    log.close()

    assert now == later == ["a/1", "a/2", "a/3"]


def clean(log: ObjectLog) -> None:
    while segment := log.victim():
        log.rewrite(segment)
        log.sync()
        log.remove(segment)


def test_overwriting_one_object_does_not_grow_the_disk(small: ObjectLog) -> None:
    """What a partition's watermark does, for ever."""
    small.put("keep", b"me", modified_ms=0)
    for number in range(500):
        small.put("watermark", b"%d" % number, modified_ms=0)
        clean(small)

    assert small.disk_bytes < 1600
    assert contents(small) == {"keep": b"me", "watermark": b"499"}


def test_compaction_does_not_bring_back_what_was_deleted(tmp_path: Path) -> None:
    """A deletion is carried along as long as an older segment may hold the object."""
    log = ObjectLog(tmp_path, segment_bytes=330)
    log.put("a/gone", b"x", modified_ms=0)
    log.put("a/big", bytes(230), modified_ms=0)
    log.delete("a/gone")
    for number in range(20):
        log.put("a/often", b"%d" % number, modified_ms=0)
        clean(log)
    first = segments(tmp_path)[0].stem
    log.close()

    log = ObjectLog(tmp_path, segment_bytes=330)
    found = contents(log)
    log.put("a/big", b"small", modified_ms=0)
    clean(log)
    log.close()

    assert first == "0000000001"
    assert found == {"a/big": bytes(230), "a/often": b"19"}
    assert segments(tmp_path)[0].stem != "0000000001"


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "drop", "clean", "reopen", "die"]),
        st.integers(0, 11),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_the_log_is_a_dictionary(steps: list[Step]) -> None:
    """Whatever is written, deleted, compacted, reopened or abandoned, in any order."""
    with TemporaryDirectory() as folder:
        log = ObjectLog(Path(folder), segment_bytes=200)
        model: dict[str, bytes] = {}
        for at, (what, number) in enumerate(steps):
            key = f"{'ab'[number % 2]}/{number:02d}"
            match what:
                case "put":
                    model[key] = b"%d" % at * (number + 1)
                    log.put(key, model[key], modified_ms=0)
                case "delete":
                    assert log.delete(key) == (key in model)
                    model.pop(key, None)
                case "drop":
                    before = list(log.keys("a/"))
                    gone = log.drop_oldest("a/", number)
                    dropped = set(before) - set(log.keys("a/"))
                    assert len(dropped) == gone <= number
                    assert dropped <= set(before[:number])
                    for name in dropped:
                        del model[name]
                case "clean":
                    clean(log)
                case "reopen":
                    log.close()
                    log = ObjectLog(Path(folder), segment_bytes=200)
                case _:
                    # A process that dies in the middle of compacting leaves both copies.
                    if segment := log.victim():
                        log.rewrite(segment)
                    log.close()
                    log = ObjectLog(Path(folder), segment_bytes=200)
            assert contents(log) == model
        live, disk = log.live_bytes, log.disk_bytes
        log.close()
        log = ObjectLog(Path(folder), segment_bytes=200)
        again = log.live_bytes, log.disk_bytes
        log.close()

        assert again == (live, disk)
