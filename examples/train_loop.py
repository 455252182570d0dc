"""Train a small model and emit what happens: with torch on the CPU, or in plain Python without it.

    MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT python examples/train_loop.py --steps 500

`mlops-pipeline up` prints such an address. Without one it trains all the same and says so.
"""

import argparse
import logging
import math
import random
from collections.abc import Iterator

from mlops_events.producers import Emitter, attach

__all__ = ["main"]

log = logging.getLogger("train")


def plain(lr: float) -> Iterator[float]:
    """Fit a line to points; yield the loss of each step."""
    slope, offset = 0.0, 0.0
    while True:
        points = [random.uniform(-1, 1) for _ in range(32)]
        errors = [slope * x + offset - math.sin(x) for x in points]
        slope -= lr * 2 * sum(e * x for e, x in zip(errors, points, strict=True)) / 32
        offset -= lr * 2 * sum(errors) / 32
        yield sum(e * e for e in errors) / 32


def with_torch(lr: float) -> Iterator[object]:
    """Fit a small network to points; yield the loss of each step, a tensor."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    while True:
        x = torch.rand(256, 1) * 6 - 3
        loss = torch.nn.functional.mse_loss(model(x), torch.sin(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def main() -> None:
    """Train."""
    options = argparse.ArgumentParser(description="Train a small model and emit what happens.")
    options.add_argument("--steps", type=int, default=200, help="how long to train")
    options.add_argument("--lr", type=float, default=0.05, help="the learning rate")
    options.add_argument("--plain", action="store_true", help="do without torch")
    given = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    losses: Iterator[object] = plain(given.lr)
    if not given.plain:
        try:
            import torch  # type: ignore[import-not-found, unused-ignore] # noqa: F401
        except ImportError:
            log.info("torch is not installed: training in plain Python")
        else:
            losses = with_torch(given.lr)

    with Emitter(run="train-loop", role="trainer", version="1.0.0", config=vars(given)) as events:
        attach(events, logger="train")
        training = events.series("training", "loss", "lr")
        for step in range(given.steps):
            with events.section("step", step=step):
                loss = next(losses)
            training(loss, given.lr, step=step)
        log.info("trained", extra={"steps": given.steps})
    stats = events.stats()
    print(f"{stats.emitted} events emitted, {stats.sent} with the broker, {stats.dropped} dropped")


if __name__ == "__main__":
    main()
