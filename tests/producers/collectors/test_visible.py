"""Which GPUs a process may use."""

import pytest

from mlops_events.producers.collectors.visible import own, visible
from mlops_events.producers.nvml import GPU

GPUS = [
    GPU(index=0, uuid="GPU-aaaa1111"),
    GPU(index=1, uuid="GPU-bbbb2222", mig=True),
    GPU(index=0, parent=1, uuid="MIG-cccc3333"),
    GPU(index=1, parent=1, uuid="MIG-dddd4444"),
    GPU(index=2, uuid="GPU-eeee5555"),
]


@pytest.mark.parametrize(
    ("said", "places"),
    [
        (None, [0, 2, 3, 4]),
        ("", []),
        ("-1", []),
        ("2", [4]),
        ("2,0", [4, 0]),
        (" 0 , 2 ", [0, 4]),
        ("0,9,2", [0]),
        ("GPU-eeee", [4]),
        ("MIG-dddd4444,GPU-aaaa1111", [3, 0]),
        ("NoDevFiles", []),
    ],
)
def test_cudas_own_list(said: str | None, places: list[int]) -> None:
    """By number or by the beginning of a uuid; it ends before what names none."""
    environ = {} if said is None else {"CUDA_VISIBLE_DEVICES": said}

    assert visible(GPUS, environ) == [GPUS[place] for place in places]


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, 0),
        ({"LOCAL_RANK": "3"}, 4),
        ({"LOCAL_RANK": "9"}, 0),
        ({"LOCAL_RANK": "x"}, 0),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "2,0"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "2"}, 4),
        ({"CUDA_VISIBLE_DEVICES": ""}, None),
    ],
)
def test_a_processes_own_gpu(environ: dict[str, str], place: int | None) -> None:
    """That of its rank among those that it sees, else the first."""
    assert own(GPUS, environ) == (None if place is None else GPUS[place])
