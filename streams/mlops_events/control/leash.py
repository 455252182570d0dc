"""Runs a program that cannot outlive the process which asked for it.

`python leash.py PARENT PROGRAM ARGUMENTS...`, with a standard input that PARENT holds open. On
Linux the system kills the program with its parent, at no cost: this process becomes the program.
Elsewhere this process stays between the two and watches its standard input.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main", "watch"]

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    """Run a program on a leash; on Linux this does not return."""
    parent, program = int(arguments[0]), list(arguments[1:])
    if sys.platform != "linux":
        return watch(program)
    return _become(parent, program)


def _become(parent: int, program: list[str]) -> NoReturn:
    import ctypes

    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, which would be inherited
    os.execv(program[0], program)  # noqa: S606 - no shell, on purpose


def watch(program: Sequence[str]) -> int:
    """Run a program, end it when standard input ends; return its exit code."""
    child = subprocess.Popen(program, stdin=subprocess.DEVNULL, close_fds=False)

    def leash() -> None:
        sys.stdin.buffer.read()
        child.kill()

    def pass_on(number: int, frame: object) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    threading.Thread(target=leash, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
