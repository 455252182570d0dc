"""GPUs as NVML tells of them: the real pynvml on a stand-in for the driver's library."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlops_events.producers.nvml import GPU, NVML, NVMLUnavailableError, System

MIB = 1 << 20


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The time, in seconds."""
    return Clock()


@pytest.fixture
def opened(clock: Clock) -> Iterator[Any]:
    """A function that opens NVML; closed with the test."""
    made: list[NVML] = []

    def opened() -> NVML:
        made.append(NVML(clock=clock))
        return made[-1]

    yield opened
    for one in made:
        one.close()


class TestHealthy:
    """A GPU that tells all."""

    def test_everything_is_read_in_plain_units(self, nvml: Any, opened: Any) -> None:
        """Bytes, watts, joules, percent, MHz."""
        nvml.play("mig=0 reasons=0x44 ecc=2")

        assert opened().read() == [
            GPU(
                index=0,
                name="NVIDIA H200",
                uuid="GPU-00000000-0000-0000-0000-000000000000",
                bus_id="00000000:01:00.0",
                compute_capability="9.0",
                memory_total=81920 * MIB,
                memory_used=10240 * MIB,
                memory_free=71680 * MIB,
                temperature=65,
                power=250.0,
                power_limit=700.0,
                energy=1234.567,
                utilization=37,
                memory_utilization=20,
                clock=1410,
                memory_clock=2619,
                throttle_reasons=("software_power_cap", "hardware_thermal"),
                ecc_errors=2,
                pcie_generation=5,
                pcie_width=16,
                mig=False,
            )
        ]

    def test_the_driver_tells_its_version_and_cudas(self, nvml: Any, opened: Any) -> None:
        """CUDA's is a number with two digits for the minor one."""
        nvml.play("driver=570.10 cuda=12080")

        assert opened().system == System(driver="570.10", cuda="12.8")

    def test_each_of_many_is_read(self, nvml: Any, opened: Any) -> None:
        """Values of one GPU are not those of another."""
        nvml.play("count=8 temperature@3=91")

        found = opened().read()

        assert [gpu.index for gpu in found] == list(range(8))
        assert [gpu.temperature for gpu in found] == [65, 65, 65, 91, 65, 65, 65, 65]

    def test_what_never_changes_is_asked_once(self, nvml: Any, opened: Any) -> None:
        """Names and handles are kept."""
        reader = opened()
        for _ in range(5):
            reader.read()

        assert nvml.calls("name") == nvml.calls("handle") == nvml.calls("pci") == 1
        assert nvml.calls("memory") == 5

    def test_what_hardly_changes_is_asked_once_a_second(
        self, nvml: Any, opened: Any, clock: Clock
    ) -> None:
        """However often all the rest is read."""
        reader = opened()
        limits = set()
        for tenth in range(21):
            clock.now = tenth / 10
            limits.add(reader.read()[0].power_limit)

        assert limits == {700}
        assert nvml.calls("ecc") == nvml.calls("limit") == nvml.calls("width") == 3


class TestMissingValues:
    """GPUs and drivers that do not tell all."""

    def test_a_consumer_card_has_no_power_and_no_ecc(self, nvml: Any, opened: Any) -> None:
        """What is not supported is None, and asked once only."""
        nvml.play("error.power=3 error.limit=3 error.ecc=3")
        reader = opened()
        found = [reader.read()[0] for _ in range(3)]

        assert {(g.power, g.power_limit, g.ecc_errors, g.mig) for g in found} == {(None,) * 4}
        assert {g.temperature for g in found} == {65}
        assert nvml.calls("power") == nvml.calls("ecc") == 1

    def test_an_old_driver_is_asked_by_its_own_calls(self, old_nvml: Any, opened: Any) -> None:
        """Temperature and throttling have new names since; there was no energy."""
        old_nvml.play("driver=390.48 reasons=1")

        gpu = opened().read()[0]

        assert gpu.temperature == 65
        assert gpu.throttle_reasons == ("idle",)
        assert gpu.energy is None
        assert gpu.memory_free == 71680 * MIB

    def test_a_passing_failure_is_passing(self, nvml: Any, opened: Any) -> None:
        """An unknown error is asked for again."""
        nvml.play("error.temperature=999")
        reader = opened()
        first = reader.read()[0]
        nvml.play("")
        second = reader.read()[0]

        assert first.temperature is None
        assert not first.lost
        assert second.temperature == 65

    def test_bits_without_a_name_are_left_out(self, nvml: Any, opened: Any) -> None:
        """A newer driver may have reasons that nobody knows yet."""
        nvml.play(f"reasons={1 << 40 | 8}")

        assert opened().read()[0].throttle_reasons == ("hardware_slowdown",)


class TestMIG:
    """A GPU that is cut into instances."""

    def test_instances_follow_their_gpu(self, nvml: Any, opened: Any) -> None:
        """Each has memory of its own; they refuse all else, and are not lost by that."""
        nvml.play("count=2 mig=0 mig@1=2")

        found = opened().read()

        assert [(gpu.parent, gpu.index, gpu.lost) for gpu in found] == [
            (None, 0, False),
            (None, 1, False),
            (1, 0, False),
            (1, 1, False),
        ]
        assert [gpu.mig for gpu in found] == [False, True, None, None]
        assert found[1].utilization is None
        assert found[2].memory_total == 40960 * MIB
        assert found[2].name == "NVIDIA H200 MIG 1g.18gb"
        assert found[2].uuid == "MIG-00000000-0000-0000-0000-000000000001"
        assert found[2].bus_id == found[1].bus_id
        assert found[2].temperature is None

    def test_instances_come_and_go(self, nvml: Any, opened: Any) -> None:
        """They are looked for at each reading."""
        nvml.play("mig=1")
        reader = opened()
        before = reader.read()
        nvml.play("mig=3")
        after = reader.read()

        assert (len(before), len(after)) == (2, 4)


class TestLost:
    """GPUs that fall off the bus."""

    def test_the_others_go_on(self, nvml: Any, opened: Any) -> None:
        """What was known of the lost one is still told."""
        nvml.play("count=2")
        reader = opened()
        reader.read()
        nvml.play("count=2 error.gpu@1=15 temperature=70")

        first, second = reader.read()
        again = reader.read()[1]

        assert (first.lost, first.temperature) == (False, 70)
        assert second.lost
        assert again.lost
        assert again.temperature is None
        assert again.uuid == "GPU-00000000-0000-0000-0000-000000000001"

    def test_it_is_looked_for_once_a_minute(self, nvml: Any, opened: Any, clock: Clock) -> None:
        """A dead GPU costs nothing between, and one that is back is read again."""
        reader = opened()
        reader.read()
        nvml.play("error.gpu=15")
        reader.read()
        for _ in range(10):
            reader.read()
        between = nvml.calls("handle")
        clock.now = 61
        still = reader.read()
        nvml.play("")
        clock.now = 100
        early = reader.read()
        clock.now = 122
        late = reader.read()

        assert between == 0
        assert [gpu.lost for gpu in (*still, *early, *late)] == [True, True, False]
        assert still[0].name == "NVIDIA H200"
        assert late[0].temperature == 65

    @pytest.mark.parametrize("error", [15, 16, 28])
    def test_whatever_the_driver_calls_it(self, nvml: Any, opened: Any, error: int) -> None:
        """Lost, to be reset, or not found."""
        reader = opened()
        reader.read()
        nvml.play(f"error.memory={error}")

        assert reader.read()[0].lost

    def test_one_that_is_lost_from_the_start_is_told(self, nvml: Any, opened: Any) -> None:
        """It has a number, and nothing else."""
        nvml.play("count=2 error.gpu@0=15")

        assert opened().read()[0] == GPU(index=0, lost=True)

    def test_fewer_gpus_and_more_again(self, nvml: Any, opened: Any) -> None:
        """A change of their number is seen at once."""
        nvml.play("count=2")
        reader = opened()
        two = reader.read()
        nvml.play("count=1")
        one = reader.read()
        nvml.play("count=3")
        three = reader.read()

        assert [gpu.lost for gpu in two] == [False, False]
        assert [gpu.lost for gpu in one] == [False, True]
        assert [gpu.lost for gpu in three] == [False, False, False]

    def test_a_count_that_fails_changes_nothing(self, nvml: Any, opened: Any) -> None:
        """The GPUs that are known are read."""
        reader = opened()
        reader.read()
        nvml.play("error.count=999 temperature=71")

        assert [gpu.temperature for gpu in reader.read()] == [71]


class TestUnavailable:
    """No NVML, and why."""

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (9, "the NVIDIA driver is not loaded; is the kernel module there (nvidia-smi)?"),
            (18, "the NVIDIA driver was updated and the machine not restarted (version mismatch)"),
            (4, "NVML does not start: Insufficient Permissions"),
        ],
    )
    def test_the_reason_is_told(self, nvml: Any, error: int, message: str) -> None:
        """In words that say what to do."""
        nvml.play(f"error.init={error}")

        with pytest.raises(NVMLUnavailableError) as raised:
            NVML()
        assert str(raised.value) == message

    def test_no_library(self, no_nvml_folder: Path) -> None:
        """The common case: a machine without a GPU."""
        code = "from mlops_events.producers.nvml import NVML; NVML()"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"LD_LIBRARY_PATH": str(no_nvml_folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.returncode == 1
        assert "no NVIDIA driver is installed on this machine" in done.stderr

    def test_no_pynvml(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is an extra, and the message names it."""
        monkeypatch.setitem(sys.modules, "pynvml", None)

        with pytest.raises(NVMLUnavailableError, match=r'pip install "mlops-events\[gpu\]"'):
            NVML()


def test_a_slow_driver_does_not_hold_up_other_threads(nvml: Any, opened: Any, until: Any) -> None:
    """The interpreter's lock is free while the driver is waited for."""
    reader = opened()
    nvml.play("delay.temperature=60000")
    thread = threading.Thread(target=reader.read, daemon=True)
    thread.start()
    until.sync(lambda: nvml.calls("temperature"))
    waiting = thread.is_alive()
    nvml.play("")
    thread.join(30)

    assert waiting
    assert not thread.is_alive()
