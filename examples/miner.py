"""A miner of a subnet: trains through windows and writes what it has made for the validator.

    python examples/miner.py --uid 1 --folder /tmp/subnet &
    python examples/validator.py --folder /tmp/subnet --miners 1

Both emit into one run if both have `MLOPS_EVENTS_RUN_ID`; with `MLOPS_EVENTS_KAFKA_BROKERS` it
arrives, without it each says so in one line and works all the same.
"""

import argparse
import json
import random
import time
from pathlib import Path

from mlops_events.producers import Emitter

__all__ = ["main"]


def main() -> None:
    """Mine."""
    options = argparse.ArgumentParser(
        description="Train through windows, for a validator to score."
    )
    options.add_argument("--uid", type=int, default=1, help="the miner's number")
    options.add_argument("--folder", type=Path, required=True, help="where gradients are put")
    options.add_argument("--windows", type=int, default=5, help="how many windows to mine")
    options.add_argument("--steps", type=int, default=20, help="training steps in each")
    options.add_argument("--pause", type=float, default=0.01, help="seconds that a step takes")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)

    with Emitter(role="miner", uid=given.uid, version="1.0.0", job_type="mining") as events:
        loss, step = 4.0, 0
        for window in range(given.windows):
            losses = []
            with events.section("window", step=step):
                for _ in range(given.steps):
                    step += 1
                    loss *= random.uniform(0.97, 1.0)
                    losses.append(loss)
                    events.observe("training", {"loss": loss, "window": window}, step=step)
                    time.sleep(given.pause)
            gradient = {"uid": given.uid, "window": window, "loss": loss}
            part = given.folder / f".{given.uid}-{window}"
            part.write_text(json.dumps(gradient))
            part.rename(given.folder / f"gradient-{given.uid}-{window}.json")
            # A list is a set of samples: its mean, minimum, maximum and median are what is stored.
            events.observe("window", {"window": window, "losses": losses}, step=step)
            events.log("info", "gradient uploaded", step=step, window=window)
    stats = events.stats()
    print(f"miner {given.uid}: {stats.emitted} events emitted, {stats.sent} with the broker")


if __name__ == "__main__":
    main()
