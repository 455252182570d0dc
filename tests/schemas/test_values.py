"""What trainers pass as values: what becomes of it, and what is refused."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlops_events.schemas.values import ENCODER, MAX_DEPTH, MAX_SAMPLES, clean


class Phase(Enum):
    """An enum as programs use it."""

    TRAIN = "train"


@dataclass
class Config:
    """A dataclass as programs use it."""

    lr: float


class TensorStandIn:
    """Has what is used of a torch tensor, for machines without torch."""

    def __init__(self, value: Any, *, shape: tuple[int, ...] = (), is_cuda: bool = False) -> None:
        self._value = value
        self.shape = shape
        self.is_cuda = is_cuda
        self.device = "cuda:0" if is_cuda else "cpu"
        self.read = False

    def __repr__(self) -> str:  # the test's id, the same in every process
        return f"tensor({self._value})"

    def detach(self) -> "TensorStandIn":
        """Return the value without its gradient."""
        return self

    def item(self) -> Any:
        """Return the only value."""
        self.read = True
        return self._value

    def tolist(self) -> Any:
        """Return all values."""
        self.read = True
        return self._value


class Hostile:
    """All of whose methods raise."""

    def __str__(self) -> str:
        raise RuntimeError("str")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.int64(7), 7),
        (np.uint8(7), 7),
        (np.bool_(True), True),
        (np.array(0.5), 0.5),
        (np.array([1.0, 2.0]), [1.0, 2.0]),
        (np.zeros((2, 2), dtype=np.int32), [[0, 0], [0, 0]]),
        (TensorStandIn(0.5), 0.5),
        (TensorStandIn([1.0, 2.0], shape=(2,)), [1.0, 2.0]),
        (Decimal("0.5"), 0.5),
        (Phase.TRAIN, "train"),
        (PurePosixPath("a/b"), "a/b"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (Config(lr=0.1), {"lr": 0.1}),
        (OrderedDict(a=1), {"a": 1}),
        ((1, 2), [1, 2]),
        ({3}, [3]),
        (1 + 2j, "(1+2j)"),
        (ValueError("wrong"), "ValueError: wrong"),
        (b"raw", b"raw"),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
    ],
    ids=repr,
)
def test_a_value_arrives_as(value: Any, arrives: Any) -> None:
    """The encoder alone takes it."""
    seen = msgspec.msgpack.decode(ENCODER.encode(value))

    assert seen == arrives
    assert type(seen) is type(arrives)


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinity_arrives(value: float) -> None:
    """Infinity is data."""
    assert msgspec.msgpack.decode(ENCODER.encode(np.float32(value))) == value


def test_nan_arrives() -> None:
    """NaN is data."""
    assert math.isnan(msgspec.msgpack.decode(ENCODER.encode(np.float32("nan"))))


def test_a_tensor_on_a_gpu_is_not_read() -> None:
    """Reading it would stall the program, so it is refused unread."""
    tensor = TensorStandIn(0.5, is_cuda=True)

    with pytest.raises(TypeError, match="synchronise"):
        ENCODER.encode(tensor)
    assert clean({"loss": tensor, "lr": 0.1}) == ({"lr": 0.1}, ["loss"])
    assert not tensor.read


def test_real_tensors_arrive_as_the_stand_in_does() -> None:
    """torch's own scalars, also those with a gradient and of half precision, where there is torch."""
    torch = pytest.importorskip("torch")
    value = {
        "loss": torch.tensor(0.5, requires_grad=True),
        "half": torch.tensor(0.5, dtype=torch.bfloat16),
        "count": torch.tensor(7),
        "samples": torch.tensor([1.0, 2.0]),
    }

    seen = msgspec.msgpack.decode(ENCODER.encode(value))

    assert seen == {"loss": 0.5, "half": 0.5, "count": 7, "samples": [1.0, 2.0]}


@pytest.mark.gpu
def test_a_real_tensor_on_a_gpu_is_not_read() -> None:
    """As the stand-in, where there is a GPU."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    assert clean({"loss": torch.ones((), device="cuda")}) == ({}, ["loss"])


def test_an_array_that_is_no_sample_is_refused() -> None:
    """A data set passed by mistake is not copied into an event."""
    with pytest.raises(TypeError, match=str(MAX_SAMPLES)):
        ENCODER.encode(np.zeros(MAX_SAMPLES + 1))


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (2**64, float(2**64)),
        (-(2**63) - 1, float(-(2**63))),
        (10**400, hex(10**400)),
        ([2**70], [float(2**70)]),
        ("\ud800", "?"),
        ({"a": {"\ud800": "\ud800"}}, {"a": {"?": "?"}}),
        ({1: {2: 3}}, {"1": {"2": 3}}),
        (np.float32(0.5), np.float32(0.5)),
    ],
    ids=repr,
)
def test_what_is_mended(value: Any, arrives: Any) -> None:
    """What msgpack cannot hold becomes what is nearest to it."""
    assert clean({"x": value}) == ({"x": arrives}, [])


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [object(), Hostile(), _nested(MAX_DEPTH + 1), _nested(5000), {"a": object()}, print]
)
def test_what_cannot_be_encoded_is_named(value: Any) -> None:
    """The good fields stay."""
    assert clean({"bad": value, "good": 1}) == ({"good": 1}, ["bad"])


def test_a_list_that_holds_itself_is_refused() -> None:
    """Recursion ends."""
    endless: list[Any] = []
    endless.append(endless)

    assert clean({"bad": endless}) == ({}, ["bad"])


def test_keys_become_text() -> None:
    """A key that cannot be text is named by its type."""
    assert clean({1: "a", None: "b", Hostile(): "c"}) == ({"1": "a", "None": "b"}, ["<Hostile>"])


@given(
    st.dictionaries(
        st.text() | st.integers() | st.none() | st.booleans(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: (
                st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
            ),
            max_leaves=10,
        ),
        max_size=6,
    )
)
def test_whatever_clean_returns_can_be_encoded_and_read(fields: dict[Any, Any]) -> None:
    """No value of plain types is lost."""
    good, bad = clean(fields)

    assert bad == []
    assert msgspec.msgpack.decode(ENCODER.encode(good), type=dict[str, Any]).keys() == good.keys()
