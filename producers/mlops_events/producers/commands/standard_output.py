"""Keeps standard output for what a command prints, while it runs the code of others."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["output_to_stderr"]


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send what is written to standard output to standard error, that of child processes too."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # what ran may have closed it
            sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        if sys.stdout.closed:
            sys.stdout = os.fdopen(1, "w", closefd=False)
