"""The service between the topics: raw frames in, tagged frames and window aggregates out."""

from mlops_events.streams.outputs import DeadLetterOut, FrameOut, Output, StatsOut
from mlops_events.streams.provisional import Provisional
from mlops_events.streams.settings import StreamSettings
from mlops_events.streams.state import Counts, Emitter, Mark, PartitionState, Totals

__all__ = [
    "Counts",
    "DeadLetterOut",
    "Emitter",
    "FrameOut",
    "Mark",
    "Output",
    "PartitionState",
    "Provisional",
    "StatsOut",
    "StreamSettings",
    "Totals",
]
