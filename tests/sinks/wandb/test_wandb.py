"""The wandb sink with wandb's own client, against a stand-in for its backend."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from mlops_events.schemas.events import Log, Origin, Run
from mlops_events.schemas.frame import Free
from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch, FrameRecord, Rejected, SinkBroken, SinkUnavailable
from mlops_events.sinks.testing import frame_record
from mlops_events.sinks.wandb import WandbSink
from mlops_events.sinks.wandb_names import name_run
from mlops_events.sinks.wandb_settings import WandbSettings

# wandb's threads that ask its killed process for news end with an exception some seconds later
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

TS = 1_700_000_000_000_000_000


def run_id(uid: int | str = 7, *, replay: str = "") -> str:
    """The id of a miner's run."""
    origin = Origin(run="llama", role="miner", uid=uid)
    return name_run(origin, WandbSettings(), replay=replay).id


async def write(sink: WandbSink, *records: FrameRecord, replay: str = "") -> Sequence[Rejected]:
    """Write records as one batch."""
    await sink.open()
    return await sink.write(Batch(records, replay))


def losses(rows: list[dict[str, Any]]) -> list[float]:
    """What was logged, in the order of the steps, which have no gaps."""
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    return [row["training/loss"] for row in rows]


async def test_an_event_is_a_row_and_redelivery_changes_nothing(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """Rows are numbered without gaps, whatever comes again, to this sink or the next (row 13)."""
    first = records({"loss": 1.0}, {"loss": 2.0})
    sink = new_sink()
    await write(sink, first)
    await write(sink, first, records({"loss": 3.0}))
    await sink.close()
    await write(new_sink(), first, records({"loss": 4.0}))

    run = backend.runs()[run_id()]
    assert losses(run["history"]) == [1.0, 2.0, 3.0, 4.0]
    assert [row["global_step"] for row in run["history"]] == [0, 0, 1, 2]
    assert (run["overwritten"], run["gaps"]) == (0, 0)


async def test_two_events_of_one_moment_are_two_rows(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """Whatever their time and step (row 12)."""
    same = [Free(TS, 5, "training", {"loss": k}) for k in (1.0, 2.0)]
    record = frame_record(same, origin=records({}).frame.origin, offset=9)
    await write(new_sink(), record)

    assert losses(backend.rows(run_id())) == [1.0, 2.0]


async def test_a_row_without_a_step_is_shown_at_the_last_one(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """Metrics of the machine are drawn over the training step too, also after a restart."""
    origin = records({}).frame.origin
    free = [Free(TS, step, "training", {"loss": 1.0}) for step in (None, 40, None)]
    await write(sink := new_sink(), frame_record(free, origin=origin, offset=5))
    await sink.close()
    await write(new_sink(), frame_record(free[2:], origin=origin, offset=6, seq=1))

    assert [row["global_step"] for row in backend.rows(run_id())] == [0, 40, 40, 40]


async def test_a_run_follows_its_run_events(backend: Any, new_sink: Any, records: Any) -> None:
    """Config, name, group, job type and project; its end; and its start anew after a crash."""
    origin = Origin(run="llama", project="zoo", role="miner", uid=7, version="1.2.3", netuid=3)

    def told(offset: int, **run: Any) -> FrameRecord:
        return frame_record([Run(ts=TS, **run)], kind="run", origin=origin, offset=offset)

    sink = new_sink()
    start = told(0, state="start", config={"lr": 0.1, "net": {"d": [1]}}, name="n", job_type="j")
    await write(sink, start, told(1, state="update", config={"lr": 0.2}))
    started = backend.runs()[run_id()]
    await write(sink, told(2, state="update", config={"seed": 1}, group="g"))
    updated = backend.runs()[run_id()]
    await write(sink, told(3, state="end", status="crashed"))
    crashed = backend.runs()[run_id()]
    await write(sink, told(4, state="end", status="finished"))
    still = backend.runs()[run_id()]
    await write(sink, told(5, state="start"), told(6, state="end", status="finished"))
    finished = backend.runs()[run_id()]

    wanted = {"lr": 0.2, "net": {"d": [1]}, "netuid": 3,
              "version_history": ["1.2.3"], "current_version": "1.2.3"}  # fmt: skip
    assert wanted.items() <= started["config"].items()
    assert (started["displayName"], started["groupName"], started["jobType"]) == ("n", "llama", "j")
    assert (started["project"], started["complete"]) == ("zoo", None)
    assert {**wanted, "seed": 1}.items() <= updated["config"].items()
    assert updated["groupName"] == "g"
    assert (crashed["complete"], still["complete"], finished["complete"]) == (1, 1, 0)


async def test_versions_are_in_the_config_in_their_order(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """A new version is added once, over restarts."""
    for version in ("1.0.0", "1.1.0", "1.1.0"):
        origin = Origin(run="llama", role="miner", uid=7, version=version)
        sink = new_sink(version_prefix="both")
        await write(sink, records({"loss": 1.0}, origin=origin))
        await sink.close()

    run = backend.runs()[run_id()]
    assert run["config"]["version_history"] == ["1.0.0", "1.1.0"]
    assert run["config"]["current_version"] == "1.1.0"
    assert [row["v1.1.0/step"] for row in run["history"][1:]] == [1, 2]
    assert "v1.0.0/training/loss" in run["history"][0]


async def test_one_bad_event_costs_itself_alone(backend: Any, new_sink: Any, records: Any) -> None:
    """The others of its frame are rows (row 20)."""
    fields: list[dict[str, Any]] = [{"loss": float(k)} for k in range(500)]
    fields[250] = {"loss": msgspec.msgpack.Ext(5, b"x")}
    refused = await write(new_sink(), records(*fields))

    assert [one.reason for one in refused] == ["unencodable"]
    assert losses(backend.rows(run_id())) == [float(k) for k in range(500) if k != 250]


async def test_logs_are_refused_and_open_no_run(backend: Any, new_sink: Any, records: Any) -> None:
    """They have no form in a history."""
    log = frame_record([Log(ts=TS, level="info", message="hi")], kind="log")
    refused = await write(new_sink(), log)

    assert [one.reason for one in refused] == ["unwanted"]
    assert backend.runs() == {}


@pytest.mark.parametrize(
    "fault",
    [{"upload_status": 500}, {"upload_status": 429, "retry_after": "1"}, {"down": True}],
)
async def test_an_outage_delays_rows_and_loses_none(
    backend: Any, new_sink: Any, records: Any, until: Any, fault: dict[str, Any]
) -> None:
    """Nothing is committed meanwhile, and all is there once it has healed (row 22)."""
    sink = new_sink(confirm_s=2.0, timeout_s=5.0)
    await write(sink, records({"loss": 1.0}))
    backend.set(**fault)
    batch = [records({"loss": 2.0}), records({"loss": 3.0})]
    with pytest.raises(SinkUnavailable, match=r"not confirmed|no answer"):
        await write(sink, *batch)
    backend.set(upload_status=200, retry_after="", down=False)

    async def written() -> bool:
        try:
            return await write(sink, *batch) == []
        except SinkUnavailable:
            return False

    await until(written, within=90)
    assert losses(backend.rows(run_id())) == [1.0, 2.0, 3.0]


async def test_a_server_that_asks_for_an_hour_is_asked_again_by_the_next_process(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """wandb would wait that long; without progress the process ends and begins anew (row 22)."""
    sink = new_sink(confirm_s=60.0, stuck_s=3.0)
    await write(sink, records({"loss": 1.0}))
    backend.set(upload_status=429, retry_after="3600")
    batch = [records({"loss": 2.0})]
    with pytest.raises(SinkBroken, match="do not arrive"):
        await write(sink, *batch)
    await sink.close()
    backend.set(upload_status=200, retry_after="")
    await write(new_sink(), *batch)

    assert losses(backend.rows(run_id())) == [1.0, 2.0]


async def test_one_run_whose_upload_hangs_is_told(
    backend: Any, new_sink: Any, records: Any, until: Any
) -> None:
    """Other runs of the batch are uploaded; the batch waits, and loses nothing."""
    sink = new_sink(confirm_s=3.0)
    await write(sink, records({"loss": 0.0}), records({"loss": 0.0}, uid=8))
    backend.fault(run_id(8), hang=True)
    batch = [records({"loss": 1.0}), records({"loss": 1.0}, uid=8)]
    with pytest.raises(SinkUnavailable, match=f"1 runs not confirmed yet: {run_id(8)}"):
        await write(sink, *batch)
    others = losses(backend.rows(run_id(7)))
    backend.fault(run_id(8))
    await write(sink, *batch)

    assert others == [0.0, 1.0]
    assert losses(backend.rows(run_id(7))) == losses(backend.rows(run_id(8))) == [0.0, 1.0]


async def test_an_outage_at_the_start_makes_no_new_run(
    backend: Any, new_sink: Any, records: Any, tmp_path: Path
) -> None:
    """The run keeps its id and its file, and goes on where it was."""
    ids = tmp_path / "ids"
    await write(sink := new_sink(id_folder=str(ids)), records({"loss": 1.0}))
    await sink.close()
    kept = {path.name: path.read_text() for path in ids.iterdir()}
    backend.set(graphql_status=503)
    sink = new_sink(id_folder=str(ids))
    with pytest.raises(SinkUnavailable, match="503"):
        await sink.open()
    backend.set(graphql_status=200)
    await sink.open()
    backend.set(graphql_status=429, retry_after="7")
    batch = [records({"loss": 2.0})]
    with pytest.raises(SinkUnavailable) as refused:
        await write(sink, *batch)
    backend.set(graphql_status=200, retry_after="")
    await write(sink, *batch)

    assert refused.value.retry_after == 7
    assert {path.name: path.read_text() for path in ids.iterdir()} == kept
    assert list(backend.runs()) == [run_id()]
    assert losses(backend.rows(run_id())) == [1.0, 2.0]


async def test_a_key_that_is_not_known_is_told(backend: Any, new_sink: Any, records: Any) -> None:
    """With what to set; nothing is asked of wandb."""
    sink = new_sink(api_key=Secret("1" * 40))
    for attempt in (sink.check, sink.open):
        with pytest.raises(SinkBroken, match="MLOPS_EVENTS_WANDB_API_KEY"):
            await attempt()

    assert backend.runs() == {}


async def test_a_key_that_is_refused_later_ends_the_process(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """What was not confirmed comes again to the process that begins anew."""
    sink = new_sink()
    await write(sink, records({"loss": 1.0}))
    backend.set(key="1" * 40)
    batch = [records({"loss": 2.0})]
    with pytest.raises(SinkBroken, match="401"):
        await write(sink, *batch)
    await sink.close()
    backend.set(key="0" * 40)
    await write(new_sink(), *batch)

    assert losses(backend.rows(run_id())) == [1.0, 2.0]


async def test_rows_of_a_run_that_was_deleted_are_refused(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """While it was open, and ever after; other runs go on."""
    sink = new_sink()
    await write(sink, records({"loss": 1.0}), records({"loss": 1.0}, uid=8))
    backend.delete(run_id())
    refused = await write(
        sink, records({"loss": 2.0}, {"loss": 3.0}), records({"loss": 2.0}, uid=8)
    )
    later = await write(sink, records({"loss": 4.0}))
    await sink.close()
    backend.set(deleted_status=404)
    restarted = await write(new_sink(), records({"loss": 5.0}), records({"loss": 3.0}, uid=8))

    assert [len(some) for some in (refused, later, restarted)] == [2, 1, 1]
    assert {one.reason for one in [*refused, *later, *restarted]} == {"run_gone"}
    assert losses(backend.rows(run_id(8))) == [1.0, 2.0, 3.0]
    assert list(backend.runs()) == [run_id(8)]


async def test_a_run_with_an_id_file_is_known_to_be_deleted(
    backend: Any, new_sink: Any, records: Any, tmp_path: Path
) -> None:
    """It is told without asking for it anew, and the file is named and left."""
    settings = {"id_folder": str(tmp_path)}
    await write(sink := new_sink(**settings), records({"loss": 1.0}))
    await sink.close()
    backend.delete(run_id())
    (refused,) = await write(new_sink(**settings), records({"loss": 2.0}))

    assert "wandb_run_id_llama_miner_7.txt" in refused.message
    assert (tmp_path / "wandb_run_id_llama_miner_7.txt").read_text() == run_id()
    assert backend.runs() == {}


async def test_the_run_of_somebody_else_is_not_written_to(
    backend: Any, new_sink: Any, records: Any, tmp_path: Path
) -> None:
    """Two nodes whose id files hold the same id are no two writers of one run."""
    await write(new_sink(), records({"loss": 1.0}))
    (tmp_path / "wandb_run_id_llama_miner_8.txt").write_text(run_id(7))
    sink = new_sink(id_folder=str(tmp_path))
    (refused,) = await write(sink, records({"loss": 2.0}, uid=8))

    assert "belongs to llama/miner/7" in refused.message
    assert losses(backend.rows(run_id())) == [1.0]


async def test_the_death_of_wandbs_process_is_noticed(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """The sink's process must begin anew; nothing is lost, nothing is there twice."""
    sink = new_sink()
    await write(sink, records({"loss": 1.0}))
    batch = [records({"loss": 2.0})]
    writing = asyncio.ensure_future(write(sink, *batch))
    await asyncio.sleep(0.05)
    _core().kill()
    with pytest.raises(SinkBroken, match="wandb"):
        await writing
    await sink.close()
    await write(new_sink(), *batch)

    assert losses(backend.rows(run_id())) == [1.0, 2.0]


def _core() -> Any:
    """The process beside this one that uploads."""
    (core,) = [p for p in psutil.Process().children() if "wandb" in p.name()]
    return core


async def test_giving_up_in_a_write_uploads_nothing_more(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """Whoever has the partition now is the only writer."""
    sink = new_sink(transmit_s=3)
    await write(sink, records({"loss": 1.0}))
    writing = asyncio.ensure_future(write(sink, records({"loss": 2.0})))
    await asyncio.sleep(0.2)
    await sink.give_up()
    with pytest.raises(SinkBroken):
        await writing

    assert losses(backend.rows(run_id())) == [1.0]


async def test_giving_up_between_writes_ends_the_runs(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """They may be taken up here again, as well as elsewhere."""
    sink = new_sink()
    await write(sink, records({"loss": 1.0}))
    await sink.give_up()
    ended = backend.runs()[run_id()]["complete"]
    await write(sink, records({"loss": 2.0}))

    assert ended == 0
    assert losses(backend.rows(run_id())) == [1.0, 2.0]


async def test_steps_that_the_server_tells_as_floats_are_no_trouble(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """Some stores of JSON do; the mark and the next step are right all the same."""
    backend.set(float_step=True)
    first = records({"loss": 1.0}, {"loss": 2.0})
    await write(sink := new_sink(), first)
    await sink.close()
    await write(new_sink(), first, records({"loss": 3.0}))

    assert losses(backend.rows(run_id())) == [1.0, 2.0, 3.0]


async def test_more_runs_than_may_be_open_take_turns(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """Those idle longest are ended; each row is there (row 25)."""
    sink = new_sink(max_open=3)
    for loss in (1.0, 2.0):
        await write(sink, *(records({"loss": loss}, uid=uid) for uid in range(7)))

    assert [losses(backend.rows(run_id(uid))) for uid in range(7)] == [[1.0, 2.0]] * 7


async def test_a_replay_writes_into_runs_of_its_own_once(
    backend: Any, new_sink: Any, records: Any
) -> None:
    """Its rows are known by their ids: the places of several topics say nothing of their order."""
    some = [records({"loss": 1.0}), records({"loss": 2.0}, offset=0), records({"loss": 3.0})]
    await write(new_sink(), records({"loss": 9.0}))
    await write(sink := new_sink(), *some[:2], replay="r1")
    await write(sink, *some, replay="r1")
    await sink.close()
    await write(new_sink(), *some[1:], replay="r1")

    assert losses(backend.rows(run_id(replay="r1"))) == [1.0, 2.0, 3.0]
    assert losses(backend.rows(run_id())) == [9.0]


PROGRAM = """
import asyncio, resource, sys
from pathlib import Path

from mlops_events.schemas.events import Origin
from mlops_events.schemas.frame import Free
from mlops_events.schemas.secret import Secret
from mlops_events.sinks.base import Batch
from mlops_events.sinks.testing import frame_record
from mlops_events.sinks.wandb import WandbSettings, WandbSink

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[3])))
    sink = WandbSink(WandbSettings(base_url=sys.argv[1], api_key=Secret("0" * 40),
                                   folder=Path(sys.argv[2]), transmit_s=1))
    await sink.open()
    print(sink._writer._core.room, flush=True)
    for number in range(int(sys.argv[5])):
        batch = Batch([
            frame_record([Free(1, number, "training", {"loss": float(number)})], seq=number,
                         offset=number * 1000 + uid, origin=Origin(run="llama", role="miner", uid=uid))
            for uid in range(int(sys.argv[4]))
        ])
        assert not await sink.write(batch)
    await sink.close()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("runs", "files", "room", "rounds"), [(210, 2048, 237, 2), (25, 306, 19, 1)]
)
async def test_hundreds_of_runs_fit_into_few_open_files(
    backend: Any, processes: Any, tmp_path: Path, runs: int, files: int, room: int, rounds: int
) -> None:
    """The limit is raised; where that is not allowed, runs take turns, never in silence (row 25)."""
    sink = processes.start(
        sys.executable,
        "-c",
        PROGRAM,
        backend.url,
        tmp_path,
        str(files),
        str(runs),
        str(rounds),
    )
    code = await asyncio.to_thread(sink.wait, within=240)

    assert (code, sink.stdout().strip()) == (0, str(room)), sink.stderr()
    found = backend.runs()
    assert [losses(found[run_id(uid)]["history"]) for uid in range(runs)] == [
        [0.0, 1.0][:rounds]
    ] * runs
