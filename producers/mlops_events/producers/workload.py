"""What a simulated node of each role reports: training-like events, repeatable by their seed."""

import math
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

from mlops_events.schemas.events import Log, Observation, Profile

__all__ = ["ROLES", "Event", "Workload"]

Event: TypeAlias = Observation | Profile | Log
"""What a node reports while it works; a Run is its emitter's business."""

ROLES = ("miner", "validator", "aggregator", "evaluator")

_SECTIONS = {
    "miner": ("forward", "backward", "optimizer"),
    "validator": ("evaluate", "score"),
    "aggregator": ("gather", "merge"),
    "evaluator": ("download", "benchmark"),
}
_NOT_FINITE = (math.nan, math.inf, -math.inf)
_SHARE_NOT_FINITE = 0.01
_SHARE_FAILED = 0.02
_WARMUP_STEPS = 100
_DECAY_STEPS = 2_000


class Workload:
    """One node's work, step by step; the same seed and the same calls give the same events.

    Args:
        role: one of ROLES; any other word trains like a miner.
        rng: where its noise comes from; nobody else may draw from it.
    """

    def __init__(self, *, role: str, rng: Random) -> None:
        self._rng = rng
        self._step = 0
        main: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
            "validator": ("evaluation", self._evaluation),
            "aggregator": ("aggregation", self._aggregation),
            "evaluator": ("benchmark", self._benchmark),
        }
        self._name, self._report = main.get(role, ("training", self._training))
        self._sections = _SECTIONS.get(role, _SECTIONS["miner"])
        self._peers = rng.randrange(12, 20)
        self.config: dict[str, Any] = {
            "model": "llama-7b",
            "learning_rate": 4e-4,
            "batch_size": rng.choice((8, 16, 32)),
            "sequence_length": 2048,
            "optimizer": {"name": "adamw", "betas": [0.9, 0.95]},
        }

    def step(self, ts: int) -> list[Event]:
        """Return what the node reports at `ts`: one observation, now and then more."""
        step = self._step
        self._step += 1
        name, fields = self._observation(step)
        tags = {"phase": "eval" if name in ("evaluation", "benchmark") else "train"}
        events: list[Event] = [Observation(ts=ts, name=name, fields=fields, step=step, tags=tags)]
        if step % 2 == 0:
            events.append(self._profile(ts, step))
        bad = [key for key, value in fields.items() if _has_not_finite(value)]
        if bad:
            events.append(
                _log(ts, step, "warning", "values are not finite", {"name": name, "fields": bad})
            )
        events += self._lines(ts, step)
        return events

    def _observation(self, step: int) -> tuple[str, dict[str, Any]]:
        if step % 10 == 4:
            return "system", self._system()
        if step % 10 == 9:
            return "network", self._network()
        return self._name, self._report()

    def _training(self) -> dict[str, Any]:
        step = self._step
        decay = math.exp(-step / 400)
        return {
            "loss": self._now_and_then_bad(2.1 + 8.6 * decay + self._rng.gauss(0, 0.08)),
            "learning_rate": _learning_rate(step),
            "grad_norm": self._now_and_then_bad(0.4 + 3 * decay + abs(self._rng.gauss(0, 0.2))),
            "tokens_per_second": self._rng.gauss(42_000, 900),
            "tokens_total": step * 32_768,
            "epoch": step // 500,
        }

    def _evaluation(self) -> dict[str, Any]:
        scores = [self._rng.gauss(0.02, 0.01) for _ in range(self._rng.randrange(3, 9))]
        scores[0] = self._now_and_then_bad(scores[0])
        return {
            "eval_loss": 2.3 + 8 * math.exp(-self._step / 500) + self._rng.gauss(0, 0.05),
            "gradient_score": self._now_and_then_bad(self._rng.gauss(0.02, 0.01)),
            "scores": scores,
            "skipped_peers": self._rng.randrange(4),
            "window": self._step // 10,
        }

    def _aggregation(self) -> dict[str, Any]:
        return {
            "gather_time": self._now_and_then_bad(self._rng.lognormvariate(0.7, 0.3)),
            "peer_success_rate": 1 - self._rng.betavariate(1, 12),
            "compression_ratio": self._rng.gauss(31.5, 1.5),
            "gradient_bytes": self._rng.randrange(180_000_000, 220_000_000),
            "window": self._step // 10,
        }

    def _benchmark(self) -> dict[str, Any]:
        progress = 1 - math.exp(-self._step / 600)
        return {
            "task": self._rng.choice(("arc", "hellaswag", "winogrande")),
            "accuracy": 0.25 + 0.4 * progress + self._rng.gauss(0, 0.01),
            "perplexity": self._now_and_then_bad(9 + 60 * (1 - progress) + self._rng.random()),
            "latencies": [self._rng.expovariate(20) for _ in range(self._rng.randrange(1, 6))],
        }

    def _system(self) -> dict[str, Any]:
        return {
            "cpu_percent": self._rng.uniform(15, 60),
            "memory_percent": self._rng.gauss(48, 2),
            "gpu_utilization": min(100.0, self._rng.gauss(93, 4)),
            "gpu_memory_used": self._rng.randrange(60 << 30, 76 << 30),
        }

    def _network(self) -> dict[str, Any]:
        behind = max(0, round(self._rng.gauss(-1, 2)))
        return {
            "active_peers": self._peers + self._rng.randrange(-2, 3),
            "compression_ratio": self._rng.gauss(31.5, 1.5),
            "steps_behind": behind,
            "synced": behind == 0,
            "sync_status": "synced" if behind == 0 else "catching up",
        }

    def _profile(self, ts: int, step: int) -> Profile:
        return Profile(
            ts=ts,
            name=self._sections[step // 2 % len(self._sections)],
            duration_ns=round(self._rng.lognormvariate(17, 0.4)),
            step=step,
            tags={"device": "cuda:0"},
            failed=self._rng.random() < _SHARE_FAILED,
        )

    def _lines(self, ts: int, step: int) -> list[Log]:
        lines: list[Log] = []
        if step % 20 == 3:
            lines.append(_log(ts, step, "debug", "batch loaded", {"seconds": self._rng.random()}))
        if step % 50 == 25:
            fields = {"path": f"checkpoints/{step}.pt", "bytes": self._rng.randrange(1 << 30)}
            lines.append(_log(ts, step, "info", "checkpoint written", fields))
        if self._rng.random() < _SHARE_FAILED / 2:
            peer = self._rng.randrange(256)
            lines.append(_log(ts, step, "error", "peer did not answer", {"peer": peer}))
        return lines

    def _now_and_then_bad(self, value: float) -> float:
        if self._rng.random() < _SHARE_NOT_FINITE:
            return self._rng.choice(_NOT_FINITE)
        return value


def _learning_rate(step: int) -> float:
    """A linear warm-up, then a cosine down to a tenth, again and again."""
    if step < _WARMUP_STEPS:
        return 4e-4 * step / _WARMUP_STEPS
    turn = (step - _WARMUP_STEPS) % _DECAY_STEPS / _DECAY_STEPS
    return 4e-4 * (0.1 + 0.45 * (1 + math.cos(math.pi * turn)))


def _has_not_finite(value: Any) -> bool:
    if isinstance(value, list):
        return any(_has_not_finite(item) for item in value)
    return isinstance(value, float) and not math.isfinite(value)


def _log(ts: int, step: int, level: str, message: str, fields: dict[str, Any]) -> Log:
    return Log(ts=ts, level=level, message=message, logger="node", fields=fields, step=step)
