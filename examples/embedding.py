"""Embed an emitter: fit a line to points and watch the loss.

Run it against a Kafka, such as the one that `make run` starts and whose address it prints:

    MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT python examples/embedding.py

Without a broker it trains all the same.
"""

import math

from mlops_events.producers import Emitter

slope, lr = 0.0, 0.05
with Emitter(run="fit-a-line", role="trainer", version="1.0.0", config={"lr": lr}) as events:
    for step in range(1_000):
        with events.section("step", step=step):
            x = math.sin(step)
            error = slope * x - 3.0 * x
            slope -= lr * 2 * error * x
        events.observe("training", {"loss": error**2, "slope": slope}, step=step)
    events.log("info", "training is done", slope=slope)
stats = events.stats()
print(f"{stats.emitted} events emitted, {stats.sent} with the broker, {stats.dropped} dropped")
