"""Train on two processes with torch's DistributedDataParallel over gloo; every rank emits.

    MLOPS_EVENTS_KAFKA_BROKERS=HOST:PORT python examples/ddp_gloo.py --world-size 2

It starts the processes itself, as torchrun does: each has RANK and WORLD_SIZE, which the emitter
reads. Needs torch; without it, it says so and ends with exit code 2.
"""

import argparse
import os
import socket
import subprocess
import sys

from mlops_events.producers import Emitter

__all__ = ["main"]


def train(steps: int) -> None:
    """Train as one rank."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]
    from torch.nn.parallel import DistributedDataParallel  # type: ignore[import-not-found, unused-ignore]

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # All ranks are one run; one of them tells that it starts and ends.
    with Emitter(run="ddp-gloo", role="trainer", uid=0, announce=rank == 0) as events:
        model = DistributedDataParallel(torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(steps):
            x = torch.randn(32, 8)
            with events.section("forward", step=step):
                loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            with events.section("backward", step=step):
                loss.backward()
            optimizer.step()
            events.observe("training", {"loss": loss}, step=step)
    dist.destroy_process_group()
    stats = events.stats()
    print(f"rank {rank}: {stats.emitted} events emitted, {stats.sent} with the broker")


def launch(world_size: int, steps: int) -> int:
    """Start the ranks and return 0 if all end well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--steps", str(steps)],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(world_size)
    ]
    return max(abs(rank.wait()) for rank in ranks)


def main() -> None:
    """Launch, or train where RANK is set."""
    options = argparse.ArgumentParser(description="Train with DDP over gloo; every rank emits.")
    options.add_argument("--world-size", type=int, default=2, help="how many processes")
    options.add_argument("--steps", type=int, default=50, help="how long to train")
    given = options.parse_args()
    try:
        import torch.distributed  # type: ignore[import-not-found, unused-ignore] # noqa: F401
    except ImportError:
        print("this example needs torch: pip install torch", file=sys.stderr)
        sys.exit(2)
    if "RANK" in os.environ:
        train(given.steps)
    else:
        sys.exit(launch(given.world_size, given.steps))


if __name__ == "__main__":
    main()
