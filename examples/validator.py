"""A validator of a subnet: scores the gradients that miners have written; see examples/miner.py."""

import argparse
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlops_events.producers import Emitter, attach, log_context

__all__ = ["main"]

log = logging.getLogger("validator")


def gradients(folder: Path, *, count: int, within_s: float) -> Iterator[dict[str, Any]]:
    """Yield so many gradients, each once, as they come; fewer if the time is over."""
    seen: set[Path] = set()
    deadline = time.monotonic() + within_s
    while len(seen) < count and time.monotonic() < deadline:
        for path in sorted(set(folder.glob("gradient-*.json")) - seen):
            seen.add(path)
            yield json.loads(path.read_text())
        time.sleep(0.02)


def main() -> None:
    """Validate."""
    options = argparse.ArgumentParser(description="Score what miners have written.")
    options.add_argument("--uid", type=int, default=0, help="the validator's number")
    options.add_argument("--folder", type=Path, required=True, help="where miners put gradients")
    options.add_argument("--miners", type=int, default=1, help="how many miners there are")
    options.add_argument("--windows", type=int, default=5, help="how many windows each mines")
    options.add_argument("--within", type=float, default=60.0, help="seconds to wait for them")
    given = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    scored = 0
    count = given.miners * given.windows
    with Emitter(role="validator", uid=given.uid, version="1.0.0") as events:
        attach(events, logger="validator")
        for gradient in gradients(given.folder, count=count, within_s=given.within):
            with log_context(miner=gradient["uid"], window=gradient["window"]):
                score = 1 / (1 + gradient["loss"])
                events.observe(
                    "evaluation",
                    {"score": score, "window": gradient["window"]},
                    tags={"miner": gradient["uid"]},
                )
                log.info("scored %.3f", score)
            scored += 1
        if scored < count:
            log.warning("gradients are missing", extra={"missing": count - scored})
    stats = events.stats()
    print(f"validator: {scored} scored, {stats.emitted} emitted, {stats.sent} with the broker")


if __name__ == "__main__":
    main()
