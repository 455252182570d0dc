"""A miner with the calls that it has made for InfluxDB, Loki and W&B so far.

Nothing but the import below was changed: docs/migrating.md shows it before and after.

    MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT python examples/shims_miner.py --uid 12
"""

import argparse
import random
import time

from mlops_events.producers.compat import (
    MetricsLogger,
    initialize_wandb,
    log_with_context,
    setup_loki_logger,
)

__all__ = ["main"]

VERSION = "1.4.0"


class Miner:
    """Trains through windows.

    Args:
        config: what the command line says.
    """

    def __init__(self, config: argparse.Namespace) -> None:
        self.config = config
        self.logger = setup_loki_logger(service="miner", uid=str(config.uid), version=VERSION)
        self.wandb = initialize_wandb(
            run_prefix="M", uid=config.uid, config=config, group="miner", job_type="mining"
        )
        self.metrics_logger = MetricsLogger(
            host="influx.example",
            port=8086,
            prefix="M",
            uid=str(config.uid),
            role="miner",
            config=config,
            group="miner",
            job_type="mining",
        )
        self.global_step = 0

    def run(self) -> None:
        """Mine."""
        for window in range(self.config.windows):
            start = time.time()
            losses = [4 / (1 + self.global_step + i) + random.random() for i in range(10)]
            self.global_step += len(losses)
            loss = sum(losses) / len(losses)
            self.wandb.log({"miner/loss": loss, "miner/window": window}, step=self.global_step)
            self.metrics_logger.log(
                measurement="training_step",
                tags={"window": window, "global_step": self.global_step},
                fields={"loss": loss, "batch_losses": losses, "duration": time.time() - start},
            )
            log_with_context(
                self.logger, "info", f"Completed window {window}", window=window, loss=loss
            )
        self.metrics_logger.close()
        self.wandb.finish()


def main() -> None:
    """Read the command line and mine."""
    options = argparse.ArgumentParser(description="Mine with the calls of before.")
    options.add_argument("--uid", type=int, default=12, help="the miner's number")
    options.add_argument("--project", default="subnet", help="what the run belongs to")
    options.add_argument("--windows", type=int, default=5, help="how many windows to mine")
    Miner(options.parse_args()).run()


if __name__ == "__main__":
    main()
