"""Keeps programs running as children of this process, and ends them with it."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from mlops_events.control import leash
from mlops_events.schemas.errors import MlopsEventsError

__all__ = ["Child", "Program", "ProgramFailedError", "Supervisor", "keep_small"]

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_SETTLED_S = 10.0
_TRIES = 5
_LOG_BYTES = 8 << 20
_LOG_CHECK_S = 10.0


class ProgramFailedError(MlopsEventsError):
    """A program does not start; the message holds the end of its log."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. One that is not `lasting` may end by itself and is not started again.

    At the end it has `stop_s` to follow a SIGTERM. `fds` are open files that it inherits.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = {}
    lasting: bool = True
    stop_s: float = 10.0
    fds: tuple[int, ...] = ()


class Child:
    """A program and how it is doing."""

    def __init__(self, program: Program, log: Path) -> None:
        self.program = program
        self.log = log
        self.state: Literal["running", "waiting", "ended"] = "waiting"
        self.pid = 0
        self.restarts = 0
        self.exit_code: int | None = None
        self.ended = asyncio.Event()
        """Set when it will not run again."""
        self._stopping = asyncio.Event()
        self._settled = False

    async def run(self, changed: Callable[[], None]) -> None:
        """Run the program until it has ended, or is stopped.

        Raises:
            ProgramFailedError: it never came to last.
        """
        loop = asyncio.get_running_loop()
        wait_s = _FIRST_WAIT_S
        try:
            while not self._stopping.is_set():
                began = loop.time()
                self.exit_code = await self._run_once(changed)
                if self._stopping.is_set() or not self.program.lasting:
                    break
                if loop.time() - began >= _SETTLED_S:
                    self._settled = True
                    wait_s = _FIRST_WAIT_S
                self.restarts += 1
                if self.restarts >= _TRIES and not self._settled:
                    raise ProgramFailedError(
                        f"{self.program.name} ended {self.restarts} times, with exit code "
                        f"{self.exit_code}; the end of {self.log}:\n{self.last_lines()}"
                    )
                changed()
                await _wait(self._stopping, wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        finally:
            self.state = "ended"
            self.ended.set()
            changed()

    async def stop(self) -> None:
        """Ask the program to end, make it end after its time; return when it has ended."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if not await _wait(self.ended, self.program.stop_s):
            self._signal(signal.SIGKILL)
            await self.ended.wait()

    def last_lines(self) -> str:
        """Return the end of its log."""
        lines = self.log.read_bytes()[-4000:].decode(errors="replace").splitlines()
        return "\n".join(lines[-8:])

    def kill(self) -> None:
        """End the program now, for good."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _run_once(self, changed: Callable[[], None]) -> int:
        program = self.program
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", leash.__file__, str(os.getpid()), *program.argv),
                env={**os.environ, **program.env},
                stdin=subprocess.PIPE,  # open while this process lives
                stdout=log,
                stderr=log,
                pass_fds=program.fds,
                process_group=0,  # Ctrl-C in the terminal is for this process alone
            )
        self.pid = process.pid
        self.state = "running"
        changed()
        if self._stopping.is_set():
            self._signal(signal.SIGTERM)
        code = await process.wait()
        self.pid = 0
        self.state = "waiting"
        return code

    def _signal(self, number: signal.Signals) -> None:
        if self.pid:
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                return


class Supervisor:
    """Starts programs, starts them again when they end unasked, and stops them.

    To be used in the main thread: on Linux children die with the thread that started them.

    Args:
        logs: the folder of their logs, one file each.
        changed: called when a child starts or ends.
    """

    def __init__(self, logs: Path, *, changed: Callable[[], None] = lambda: None) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.children: dict[str, Child] = {}
        self._logs = logs
        self._changed = changed
        self._tasks: list[asyncio.Task[None]] = []
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.append(asyncio.create_task(self._keep_logs_small()))

    def start(self, program: Program) -> Child:
        """Start a program and keep it running."""
        child = Child(program, self._logs / f"{program.name}.log")
        self.children[program.name] = child
        task = asyncio.create_task(child.run(self._changed))
        task.add_done_callback(self._note)
        self._tasks.append(task)
        return child

    async def failure(self) -> None:
        """Wait until a program cannot be kept running.

        Raises:
            ProgramFailedError: always; what happened.
        """
        await asyncio.shield(self._failed)

    async def stop(self, *names: str) -> None:
        """Stop these programs, all at once; those that never started too."""
        await asyncio.gather(*(self.children[n].stop() for n in names if n in self.children))

    def kill(self) -> None:
        """End all programs now, for good."""
        for child in self.children.values():
            child.kill()

    async def close(self) -> None:
        """Stop what still runs, the last started first; may be called twice."""
        for name in reversed(self.children):
            await self.stop(name)
        self._tasks[0].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)
            self._failed.exception()  # it is no mistake not to ask for it

    async def _keep_logs_small(self) -> None:
        while True:
            for child in self.children.values():
                keep_small(child.log, max_bytes=_LOG_BYTES)
            await asyncio.sleep(_LOG_CHECK_S)


def keep_small(log: Path, *, max_bytes: int) -> None:
    """Move what is in a log aside when it is large; who appends to it goes on at its start."""
    if log.exists() and log.stat().st_size > max_bytes:
        shutil.copyfile(log, log.with_suffix(".log.1"))
        os.truncate(log, 0)


async def _wait(event: asyncio.Event, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
