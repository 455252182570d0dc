"""What a node tells of itself: the machine, its GPUs, the memory that torch holds.

Neither psutil nor pynvml is imported before a collector's thread runs.
"""

from mlops_events.producers.collectors.series import Collectors
from mlops_events.producers.collectors.shared import latest

__all__ = ["Collectors", "latest"]
