"""A MetricsLogger as programs use it to write points to InfluxDB; here they become observations."""

from collections.abc import Mapping
from typing import Any

from mlops_events.producers.compat.moments import nanoseconds, step_of
from mlops_events.producers.compat.notices import say_moved, say_once
from mlops_events.producers.compat.samples import gpu_fields, system_fields
from mlops_events.producers.compat.sharing import share
from mlops_events.producers.thinning import Thinning

__all__ = ["MetricsLogger"]


class MetricsLogger:
    """Sends measurements through the pipeline.

    It shares its emitter with the logger and the W&B run of the same node. Arguments that name a
    server, a database, a token, a queue or workers are taken and not used.

    Args:
        server: taken and not used, as are all that have no place below.
        prefix: what the names of all measurements begin with.
        uid: the node's number or name; `MLOPS_EVENTS_UID` without it.
        version: of the program; `MLOPS_EVENTS_VERSION` without it.
        role: what the node does.
        config: a mapping, a Namespace or another object; its scalars become the run's
            configuration.
        group: runs that belong together.
        job_type: such as "mining".
        run: the run's id; `MLOPS_EVENTS_RUN_ID` without it.
        unused: more that is not used.

    Raises:
        ConfigError: a setting of the environment is unusable.
    """

    def __init__(
        self,
        *server: Any,
        prefix: str = "",
        uid: int | str | None = None,
        version: str = "",
        role: str = "",
        config: Any = None,
        group: str = "",
        job_type: str = "",
        run: str | None = None,
        **unused: Any,
    ) -> None:
        del server, unused
        say_moved("INFLUXDB_", "InfluxDB")
        self.prefix = prefix
        self._shared = share(
            run=run,
            uid=uid,
            role=role,
            hints=(group, prefix),
            config=config,
            version=version,
            group=group,
            job_type=job_type,
        )
        self._shared.hold()
        self._open = True
        self._thinnings: dict[tuple[str, float], Thinning] = {}

    def log(
        self,
        measurement: str,
        tags: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
        timestamp: Any = None,
        with_system_metrics: bool = False,
        with_gpu_metrics: bool = False,
        sample_rate: float = 1.0,
    ) -> None:
        """Emit an observation; never raises.

        Args:
            measurement: its name, after the prefix.
            tags: more about it.
            fields: its values; the members of a list are samples. `global_step` or `step` among
                fields or tags is the step of the event, too.
            timestamp: when it was; now if None.
            with_system_metrics: add the newest figures of the machine; the first call of a process
                starts to collect them.
            with_gpu_metrics: add those of this process's GPU.
            sample_rate: the share of such calls that is emitted, told as the tag `sample_rate`.
        """
        try:
            marks = tags or {}
            if sample_rate != 1.0:
                if not self._take(measurement, sample_rate):
                    return
                marks = {**marks, "sample_rate": f"{sample_rate:g}"}
            values = dict(fields or {})
            step = step_of(values, marks)
            if with_system_metrics:
                values.update(system_fields())
            if with_gpu_metrics:
                values.update(gpu_fields())
            self._shared.emitter.observe(
                f"{self.prefix}{measurement}",
                values,
                step=step,
                ts=nanoseconds(timestamp),
                tags=marks,
            )
        except Exception as error:  # values may be anybody's objects
            say_once("a call of log cannot be understood: %s: %s", type(error).__name__, error)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything is acknowledged; False if it is not in time."""
        return self._shared.emitter.flush(timeout)

    def close(self) -> None:
        """Send the rest; the run ends if no W&B run of this node is open."""
        if self._open:
            self._open = False
            self._shared.release()

    def _take(self, measurement: str, rate: float) -> bool:
        key = (measurement, rate)
        thinning = self._thinnings.get(key)
        if thinning is None:
            thinning = self._thinnings[key] = Thinning(rate)
        return thinning.take()
