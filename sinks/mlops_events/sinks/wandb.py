"""The wandb sink: every node a run at Weights & Biases, every event a row of its history, once."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from mlops_events.schemas.settings import load
from mlops_events.sinks.base import Batch, Rejected, SinkBroken
from mlops_events.sinks.wandb_api import WandbApi
from mlops_events.sinks.wandb_core import WandbCore
from mlops_events.sinks.wandb_files import WandbFiles
from mlops_events.sinks.wandb_settings import WandbSettings
from mlops_events.sinks.wandb_store import RunStore
from mlops_events.sinks.wandb_writer import WandbWriter

__all__ = ["WandbSettings", "WandbSink"]

T = TypeVar("T")


class WandbSink:
    """Logs to many runs from one process.

    `write` returns once the backend has confirmed the rows, which takes some seconds, for all runs
    of the batch at the same time.

    Args:
        settings: from the environment if None.
    """

    name = "wandb"

    def __init__(self, settings: WandbSettings | None = None) -> None:
        self._settings = settings if settings is not None else load(WandbSettings, "wandb")
        self._thread: ThreadPoolExecutor | None = None
        self._writer: WandbWriter | None = None
        self._work: Future[Any] | None = None

    async def check(self) -> None:
        """Ask the backend whether it takes the key."""
        store = self._make_store()
        try:
            await asyncio.to_thread(store.check)
        finally:
            store.close()

    async def open(self) -> None:
        """Ask whether the key is good; runs are opened when there is something for them."""
        if self._writer is not None:
            return
        store = self._make_store()
        writer = WandbWriter(
            self._settings,
            store,
            WandbCore(self._settings),
            entity=lambda: store.entity if isinstance(store, WandbApi) else "",
        )
        await asyncio.to_thread(writer.open)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="wandb")
        self._writer = writer

    async def write(self, batch: Batch) -> Sequence[Rejected]:
        """Write a batch and wait until it is confirmed."""
        if self._writer is None:
            raise SinkBroken("the wandb sink is closed; open it first")
        writer = self._writer
        return await self._run(lambda: writer.write(batch))

    async def give_up(self) -> None:
        """Let go of all runs: their partitions may be another process's from now on."""
        if self._writer is None:
            return
        if self._busy:
            self._writer.abandon()
        else:
            await self._run(self._writer.leave)

    async def close(self) -> None:
        """End all runs; a write that is under way is given up."""
        if self._thread is None or self._writer is None:
            return
        thread, writer = self._thread, self._writer
        self._thread = self._writer = None
        if self._busy:
            writer.abandon()
        await asyncio.get_running_loop().run_in_executor(thread, writer.close)
        thread.shutdown()

    def _make_store(self) -> RunStore:
        if self._settings.mode == "offline":
            return WandbFiles(self._settings.folder)
        return WandbApi(self._settings)

    @property
    def _busy(self) -> bool:
        return self._work is not None and not self._work.done()

    async def _run(self, work: Callable[[], T]) -> T:
        """Do something in the sink's thread, one thing after the other."""
        if self._thread is None:
            raise SinkBroken("the wandb sink is closed; open it first")
        self._work = future = self._thread.submit(work)
        return await asyncio.wrap_future(future)
