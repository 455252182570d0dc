"""Emitters in real programs: forks, and every way in which a process ends."""

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

PROGRAM = '''
import json, os, sys, threading, time
from mlops_events.producers import Emitter
from mlops_events.producers.testing import MemoryTransport

class Telling(MemoryTransport):
    """Prints at its end what it got, for the test to read."""

    async def close(self, timeout_s):
        await super().close(timeout_s)
        frames = [
            {"emitter": f.emitter.hex(), "kind": f.kind, "seq": f.seq, "end": f.end,
             "events": [e.fields["i"] for _, e in f.events() if hasattr(e, "name") and f.kind == "observation"],
             "status": [e.status for _, e in f.events() if f.kind == "run"]}
            for f in self.frames()
        ]
        print(json.dumps({"pid": os.getpid(), "frames": frames}), flush=True)

transport = Telling()
events = Emitter(run="r", transport=transport)
'''


def run(body: str, *, within_s: float = 30) -> tuple[int, list[dict[str, Any]], str]:
    """Run a program; return its exit code, what its transports printed, and standard error."""
    # Python 3.12 and newer warn of a fork beside a thread, and an emitter has one
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def observed(told: dict[str, Any]) -> list[int]:
    """What the observations of a process held."""
    return [i for frame in told["frames"] for i in frame["events"]]


@pytest.mark.parametrize(
    ("ending", "code", "status"),
    [
        ("", 0, "finished"),
        ("sys.exit(0)", 0, "finished"),
        ("raise ValueError('training failed')", 1, "crashed"),
    ],
)
def test_what_was_emitted_is_sent_at_exit(ending: str, code: int, status: str) -> None:
    """Without a close, and the run says how it ended."""
    exit_code, (told,), _ = run(f"events.observe('a', {{'i': 1}})\n{ending}\n")

    assert exit_code == code
    assert observed(told) == [1]
    assert told["frames"][-1]["end"] or told["frames"][-2]["end"]
    assert [s for f in told["frames"] for s in f["status"]][-1] == status


def test_a_broker_that_hangs_does_not_hold_up_exit() -> None:
    """The exit's deadline is two seconds; what the interpreter needs besides is allowed for."""
    code, (told,), err = run(
        """
        transport.hang()
        events.observe("a", {"i": 1})
        """,
        within_s=15,
    )

    assert (code, err) == (0, "")
    assert told["frames"] == []


def test_a_forked_child_is_an_emitter_of_its_own() -> None:
    """It has a new id, starts at 0 with nothing of its parent's, and both send all they have."""
    code, told, err = run(
        """
        events.observe("a", {"i": 1})
        child = os.fork()
        if child == 0:
            events.observe("a", {"i": 2})
            events.close()
            os._exit(0)
        os.waitpid(child, 0)
        events.observe("a", {"i": 3})
        events.close()
        """
    )

    assert (code, err) == (0, "")
    child, parent = sorted(told, key=len) if len(told) == 1 else (told[0], told[-1])
    assert observed(child)[-1] == 2
    assert [i for i in observed(parent) if i != 2] == [1, 3]
    own = [f for f in child["frames"] if 2 in f["events"]]
    theirs = [f for f in parent["frames"] if f["events"] and 2 not in f["events"]]
    assert {f["emitter"] for f in own}.isdisjoint({f["emitter"] for f in theirs})
    assert own[0]["seq"] == 0


def test_a_child_of_multiprocessing_sends_before_it_ends() -> None:
    """Such children run no exit functions."""
    code, told, err = run(
        """
        import multiprocessing

        def work():
            events.observe("a", {"i": 5})

        if __name__ == "__main__":
            child = multiprocessing.get_context("fork").Process(target=work)
            child.start()
            child.join()
            events.close()
        """
    )

    assert (code, err) == (0, "")
    assert 5 in [i for one in told for i in observed(one)]


def test_signal_handlers_of_the_program_stay() -> None:
    """An emitter installs none."""
    code, _, err = run(
        """
        import signal
        events.observe("a", {"i": 1})
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        """
    )

    assert (code, err) == (0, "")


def test_emitting_in_a_signal_handler_does_no_harm() -> None:
    """Even when it interrupts another call."""
    code, (told,), err = run(
        """
        import signal
        def handler(*_):
            events.observe("a", {"i": -1})
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for i in range(20000):
            events.observe("a", {"i": i})
        signal.setitimer(signal.ITIMER_REAL, 0, 0)
        events.close()
        """
    )

    assert (code, err) == (0, "")
    assert [i for i in observed(told) if i >= 0] == list(range(20000))


def test_emitting_after_close_is_counted() -> None:
    """It neither raises nor hangs."""
    code, _, err = run(
        """
        events.close()
        events.observe("a", {"i": 1})
        assert events.stats().kinds["observation"].dropped == {"closed": 1}
        """
    )

    assert (code, err) == (0, "")


def test_a_fork_while_a_thread_imports_for_ever_leaves_the_child_able_to_import() -> None:
    """The child does not wait for a thread that it does not have."""
    code, told, err = run(
        """
        from mlops_events.producers import lifetime

        lifetime._IMPORT_S = 0.05
        events.observe("a", {"i": 1})
        assert events.flush(20)
        held = threading.Event()

        def import_slowly():
            with lifetime.IMPORTING:
                held.set()
                time.sleep(60)

        threading.Thread(target=import_slowly, daemon=True).start()
        held.wait()
        child = os.fork()
        if child == 0:
            events.observe("a", {"i": 2})
            os._exit(0 if events.flush(20) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        events.close()
        """
    )

    assert (code, err) == (0, "")
    assert observed(told[-1]) == [1]
