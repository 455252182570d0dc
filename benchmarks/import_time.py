"""What `import mlops_events.producers` costs, beside `import msgspec` alone.

python benchmarks/import_time.py [--rounds 20]

Fresh interpreters, taken in turns; the least time of each, without the interpreter's own start.
Modules are compiled beforehand, as in every program that was started once.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

LIMIT = 1.5
NEVER = ("aiokafka", "numpy", "torch", "typer", "rich")
CODES = {
    "nothing": "pass",
    "msgspec": "import msgspec",
    "producers": "import mlops_events.producers",
}


def seconds(code: str) -> float:
    """Return how long a fresh interpreter takes to run this."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return time.perf_counter() - start


def unwanted() -> list[str]:
    """Return the modules that importing the producers must not import, but does."""
    code = "import sys, mlops_events.producers; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8"
    )
    return sorted(set(done.stdout.split()) & set(NEVER))


def main() -> int:
    """Measure, print and write the figures; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    least = dict.fromkeys(CODES, float("inf"))
    for _ in range(rounds):
        for name, code in CODES.items():
            least[name] = min(least[name], seconds(code))
    base = least["nothing"]
    msgspec_ms = (least["msgspec"] - base) * 1e3
    producers_ms = (least["producers"] - base) * 1e3
    result = {
        "msgspec_ms": round(msgspec_ms, 1),
        "producers_ms": round(producers_ms, 1),
        "ratio": round(producers_ms / msgspec_ms, 2),
        "limit": LIMIT,
        "unwanted": unwanted(),
        "python": sys.version.split()[0],
    }
    folder = Path(__file__).parent / "results"
    (folder / "import_time.json").write_text(json.dumps(result, indent=2) + "\n")
    print(f"import msgspec                {msgspec_ms:6.1f} ms")
    print(f"import mlops_events.producers {producers_ms:6.1f} ms")
    print(f"ratio {result['ratio']}, target {LIMIT}; unwanted: {result['unwanted'] or 'none'}")
    return 1 if producers_ms / msgspec_ms > LIMIT or result["unwanted"] else 0


if __name__ == "__main__":
    sys.exit(main())
