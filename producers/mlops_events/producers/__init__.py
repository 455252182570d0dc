"""What a training program embeds."""

from mlops_events.producers.emitter import Emitter
from mlops_events.producers.settings import EmitterSettings
from mlops_events.producers.stats import EmitterStats

__all__ = ["Emitter", "EmitterSettings", "EmitterStats"]
