"""Lets through a share of what comes, spread evenly."""

__all__ = ["Thinning"]


class Thinning:
    """Takes `rate` of all calls: with 0.1 the first, the eleventh, ...

    Threads may call it at once: a few may then be taken more, or less.

    Args:
        rate: from 0, which takes nothing, to 1, which takes everything.

    Raises:
        ValueError: it is no such share.
    """

    __slots__ = ("_rate", "_sum")

    def __init__(self, rate: float) -> None:
        if not 0 <= rate <= 1:
            raise ValueError(f"a sample rate of {rate!r}; expected a share from 0 to 1")
        self._rate = rate
        self._sum = 1.0 - rate if rate else 0.0

    def take(self) -> bool:
        """Whether this one is let through."""
        self._sum = total = self._sum + self._rate
        if total < 1.0 - 1e-9:
            return False
        self._sum = total - 1.0
        return True
