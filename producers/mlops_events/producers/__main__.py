"""`python -m mlops_events.producers` is `mlops-emit`."""

import sys

from mlops_events.producers.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
