"""Fixtures that every test may use: real servers, processes, ports, topics and waiting.

    kafka          "127.0.0.1:PORT" of one Apache Kafka for the whole run, all xdist workers too
    kafka_broker   a KafkaBroker of the test's own, to kill: .address, .kill(), .start(), .stop()
    embedded_broker  the broker of `mlops-pipeline up` on its store, the same to use
    influxdb       a real InfluxDB 1.x with a database of the test's own: .url, .token, .database, .query(...),
                   .points(), .write(lines); .kill(), .freeze(), .thaw(), .start(...): it is one for each xdist worker, and well again afterwards
    victorialogs   a real VictoriaLogs, which speaks Loki's push API, with a tenant of the test's own: .url, .tenant,
                   .query(...), and the same to harm it
    prefix         a topic prefix that no other test uses
    free_port      free_port() -> a TCP port on 127.0.0.1 that nobody listens on
    processes      processes.start(*args, env=..., cwd=..., stdin=..., fds=...) -> Process; ends with the test
                   Process: .pid .poll() .wait(within=30) .signal(SIGTERM) .kill() .stdout() .stderr()
    until          await until(condition, within=30) -> its first true value; the condition may be
                   async; until.sync(condition, within=30) does the same in a test that is not

A test that uses `kafka` or `kafka_broker` gets the marker `kafka`. Without Java these tests are
skipped, and fail where CI=true; those of `influxdb` and `victorialogs` are without Go. Settings of the environment (MLOPS_EVENTS_*, RANK, ...) are taken
away before any test runs.
"""

import asyncio
import base64
import fcntl
import http.client
import inspect
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

KAFKA = Path(__file__).parent / "services" / "kafka.sh"
SERVERS = Path(__file__).parent / "services" / "servers.sh"
SERVICES = "PYTEST_SERVICES_DIR"  # set by the first process of a run, for its xdist workers
OWNER = "PYTEST_SERVICES_OWNER"
NOT_INSTALLED = 4  # exit code of kafka.sh and servers.sh
SETTINGS = (
    "MLOPS_EVENTS_",
    "KAFKA_BOOTSTRAP_SERVERS",
    "INFLUXDB_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
)

cache = os.environ.get("MLOPS_EVENTS_CACHE")
hypothesis.settings.register_profile("tests", deadline=None)  # a busy machine is no fault
hypothesis.settings.load_profile("tests")


# --- the run ----------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a folder for its services and an environment without settings."""
    if not hasattr(config, "workerinput"):
        os.environ[SERVICES] = tempfile.mkdtemp(prefix="mlops-events-test-")
        os.environ[OWNER] = str(os.getpid())
    for name in [n for n in os.environ if n.startswith(SETTINGS)]:
        del os.environ[name]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a real Kafka."""
    for item in items:
        if {"kafka", "kafka_broker"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("kafka")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, Any]:
    """Report all tests skipped for want of Kafka at one place, so that one line tells of them."""
    report = yield
    if isinstance(report.longrepr, tuple) and item.get_closest_marker("kafka"):
        report.longrepr = (__file__, 1, report.longrepr[2])
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the services of the run."""
    if hasattr(config, "workerinput") or SERVICES not in os.environ:
        return
    folder = Path(os.environ.pop(SERVICES))
    if (folder / "kafka").exists():
        _kafka_sh("stop", folder / "kafka")
    shutil.rmtree(folder, ignore_errors=True)


# --- Kafka ------------------------------------------------------------------------------------


def _kafka_sh(*arguments: object) -> str:
    return _script(KAFKA, *arguments, KAFKA_HEAP="256m", KAFKA_OWNER_PID=os.environ[OWNER])


def _script(path: Path, *arguments: object, within: float = 300.0, **environ: str) -> str:
    """Run a script of tests/services and return what it prints."""
    if cache:
        environ["MLOPS_EVENTS_CACHE"] = cache
    done = subprocess.run(
        ["bash", str(path), *map(str, arguments)],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    if done.returncode == NOT_INSTALLED and os.environ.get("CI") != "true":
        pytest.skip(done.stderr.strip().removeprefix(f"{path.name}: "))
    if done.returncode != 0:
        pytest.fail(f"{path.name} {arguments[0]} failed:\n{done.stderr}", pytrace=False)
    return done.stdout


class KafkaBroker:
    """An Apache Kafka of one node in a folder, on a port of its own.

    Args:
        folder: where it keeps its data and logs.
        port: where clients reach it; it talks to itself on the next one.
    """

    def __init__(self, folder: Path, *, port: int) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{port}"
        self.port = port

    def start(self) -> None:
        """Start it, or start it again on its data, and return when it answers."""
        _kafka_sh("start", self.folder, self.port)

    def stop(self) -> None:
        """Stop it cleanly; harmless when it is not running."""
        _kafka_sh("stop", self.folder)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        _kafka_sh("kill", self.folder)


@pytest.fixture
def kafka_script(kafka: str) -> Callable[..., str]:
    """Return what runs tests/services/kafka.sh, for a broker of a special kind."""
    return _kafka_sh


@pytest.fixture(scope="session")
def kafka() -> str:
    """Return the address of the run's Apache Kafka, started by the first test that asks."""
    services = Path(os.environ[SERVICES])
    known = services / "kafka.address"
    with (services / "kafka.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            broker = KafkaBroker(services / "kafka", port=_free_port())
            broker.start()
            known.write_text(broker.address)
    return known.read_text()


@pytest.fixture
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Start an Apache Kafka for this test alone."""
    broker = KafkaBroker(tmp_path_factory.mktemp("broker") / "kafka", port=_free_port())
    broker.start()
    yield broker
    broker.kill()


# --- InfluxDB and VictoriaLogs ----------------------------------------------------------------


class Server:
    """A destination of sinks in a folder, on a port of its own.

    Args:
        name: what servers.sh calls it.
        folder: where it keeps its data and log.
        port: where clients reach it.
    """

    def __init__(self, name: str, folder: Path, *, port: int) -> None:
        self._name = name
        self.folder = folder
        self.port = port
        self._harmed = False

    def start(self, **environ: str) -> None:
        """Start it, or start it again on its data, and return when it answers.

        Args:
            environ: what servers.sh and the server read from the environment.
        """
        self._harmed = bool(environ)
        environ["SERVER_OWNER_PID"] = os.environ[OWNER]
        _script(SERVERS, "start", self._name, self.folder, self.port, within=900, **environ)

    def stop(self) -> None:
        """Stop it cleanly; harmless when it is not running."""
        self._harmed = True
        _script(SERVERS, "stop", self.folder)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._harmed = True
        _script(SERVERS, "kill", self.folder)

    def freeze(self) -> None:
        """Stop it with SIGSTOP: it takes connections and never answers.

        On a busy machine its threads stop a while after the signal, so that is waited for.
        """
        self._harmed = True
        pid = self._pid()
        os.kill(pid, signal.SIGSTOP)
        Until().sync(lambda: _stands_still(pid), every=0.001)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        os.kill(self._pid(), signal.SIGCONT)

    def heal(self) -> None:
        """Have it run as it did at first, whatever a test did to it."""
        if self._harmed:
            self.stop()
            self.start()

    def _pid(self) -> int:
        return int((self.folder / "pid").read_text())


def _stands_still(pid: int) -> bool:
    threads = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    if not threads:  # not Linux
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads)


def _post(
    port: int,
    path: str,
    form: Mapping[str, str] | str,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Post a form or a text to a server of ours; return the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        kind = {"Content-Type": "application/x-www-form-urlencoded", **(headers or {})}
        body = form if isinstance(form, str) else urllib.parse.urlencode(form)
        connection.request("POST", path, body.encode(), kind)
        return connection.getresponse().read()
    finally:
        connection.close()


class InfluxDB:
    """A database of an InfluxDB 1.x; everything else about the server is in `server`."""

    token = "admin:adminpw"

    def __init__(self, server: Server, database: str) -> None:
        self.server = server
        self.database = database
        self.url = f"http://127.0.0.1:{server.port}"
        self.start, self.stop, self.kill = server.start, server.stop, server.kill
        self.freeze, self.thaw = server.freeze, server.thaw

    def query(self, text: str) -> list[dict[str, Any]]:
        """Return the rows that an InfluxQL query finds; times are ns, groups' tags are columns."""
        return [
            {"measurement": found.get("name"), **found.get("tags", {}), **row}
            for found in self._series(text)
            for row in _rows(found)
        ]

    def points(self) -> list[tuple[str, dict[str, str], int]]:
        """Return measurement, tags and time of every point."""
        found = self._series("SELECT * FROM /.*/ GROUP BY *")
        return [
            (series["name"], {k: v for k, v in series["tags"].items() if v}, row["time"])
            for series in found
            for row in _rows(series)
        ]

    def write(self, lines: str) -> None:
        """Write lines, as somebody else's program does."""
        head = {"Authorization": f"Token {self.token}"}
        path = f"/api/v2/write?precision=ns&bucket={self.database}"
        answer = _post(self.server.port, path, lines, head)
        assert not answer, answer

    def _series(self, text: str) -> list[dict[str, Any]]:
        basic = base64.b64encode(self.token.encode()).decode()
        answer = json.loads(
            _post(
                self.server.port,
                f"/query?epoch=ns&db={self.database}",
                {"q": text},
                {"Authorization": f"Basic {basic}"},
            )
        )
        results = answer.get("results", ())
        problems = [answer.get("error"), *(result.get("error") for result in results)]
        assert not any(problems), f"{text}: {problems}"
        return [series for result in results for series in result.get("series", ())]


def _rows(series: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = series["columns"]
    return [dict(zip(columns, row, strict=True)) for row in series.get("values", ())]


@pytest.fixture(scope="session")
def influxdb_server() -> Iterator[Server]:
    """Start an InfluxDB for this xdist worker; tests use `influxdb`."""
    yield from _server("influxdb")


@pytest.fixture
def influxdb(influxdb_server: Server) -> Iterator[InfluxDB]:
    """Make a database of the test's own."""
    found = InfluxDB(influxdb_server, f"test_{uuid.uuid4().hex[:12]}")
    found.query(f'CREATE DATABASE "{found.database}"')
    yield found
    influxdb_server.heal()
    found.query(f'DROP DATABASE "{found.database}"')


class VictoriaLogs:
    """A tenant of a VictoriaLogs; everything else about the server is in `server`."""

    def __init__(self, server: Server, tenant: str) -> None:
        self.server = server
        self.tenant = tenant
        self.url = f"http://127.0.0.1:{server.port}/insert"
        self.ready_path = "/loki/ready"
        self.start, self.stop, self.kill = server.start, server.stop, server.kill
        self.freeze, self.thaw = server.freeze, server.thaw

    def query(self, text: str) -> list[dict[str, str]]:
        """Return the rows that a LogsQL query finds, of all that was pushed before.

        A row has `_time`, `_msg`, labels and metadata. Sort with `... | sort by (_time)`.
        """
        _post(self.server.port, "/internal/force_flush", {})
        account, project = self.tenant.split(":")
        headers = {"AccountID": account, "ProjectID": project}
        answer = _post(self.server.port, "/select/logsql/query", {"query": text}, headers)
        return [json.loads(line) for line in answer.splitlines()]


@pytest.fixture(scope="session")
def victorialogs_server() -> Iterator[Server]:
    """Start a VictoriaLogs for this xdist worker; tests use `victorialogs`."""
    yield from _server("victorialogs")


@pytest.fixture
def victorialogs(victorialogs_server: Server) -> Iterator[VictoriaLogs]:
    """Give a tenant of the test's own."""
    yield VictoriaLogs(victorialogs_server, f"{random.randrange(1, 2**31)}:{os.getpid()}")
    victorialogs_server.heal()


def _server(name: str) -> Iterator[Server]:
    services = Path(os.environ[SERVICES])
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    server = Server(name, services / f"{name}-{worker}", port=_free_port())
    with (services / "servers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of the workers builds it
        server.start()
    yield server
    server.stop()


# --- topics -----------------------------------------------------------------------------------


@pytest.fixture
def prefix() -> str:
    """Return a topic prefix that no other test uses."""
    return f"test.{uuid.uuid4().hex[:12]}"


# --- processes and ports ----------------------------------------------------------------------


def _free_port() -> int:
    # below the range that the system takes ports of outgoing connections from
    for port in random.sample(range(20_000, 32_000), k=1_000):
        with socket.socket() as a, socket.socket() as b:
            try:
                a.bind(("127.0.0.1", port))
                b.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port
    raise AssertionError("no free port between 20000 and 32000")


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Return a function that finds a TCP port nobody listens on; the next one is free too."""
    return _free_port


class Process:
    """A program that a test started, with its output in files."""

    def __init__(self, popen: "subprocess.Popen[bytes]", out: Path, err: Path) -> None:
        self._popen = popen
        self._out = out
        self._err = err
        self.pid = popen.pid

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._popen.poll()

    def wait(self, *, within: float = 90.0) -> int:
        """Wait for its end and return its exit code."""
        try:
            return self._popen.wait(within)
        except subprocess.TimeoutExpired:
            pytest.fail(f"process {self.pid} still runs after {within} s\n{self.stderr()}")

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """Kill it with SIGKILL and wait for its end."""
        self._popen.kill()
        self._popen.wait()

    def stdout(self) -> str:
        """Return what it printed so far."""
        return self._out.read_text(errors="replace")

    def stderr(self) -> str:
        """Return what it said on standard error so far."""
        return self._err.read_text(errors="replace")


class Processes:
    """Starts programs and ends them, and what they started in their session."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[tuple[Process, subprocess.Popen[bytes]]] = []

    def start(
        self,
        *args: str | Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        fds: Sequence[int] = (),
    ) -> Process:
        """Start a program.

        Args:
            args: the program and its arguments.
            env: set beside the environment of the tests.
            cwd: where it runs.
            stdin: what it reads from standard input; nothing by default.
            fds: file descriptors that it inherits.
        """
        name = f"process-{len(self._started)}"
        out, err, given = (self._folder / f"{name}.{kind}" for kind in ("out", "err", "in"))
        given.write_text(stdin or "")
        with out.open("wb") as o, err.open("wb") as e, given.open("rb") as i:
            popen = subprocess.Popen(
                [str(a) for a in args],
                env={**os.environ, **(env or {})},
                cwd=cwd,
                stdin=i,
                stdout=o,
                stderr=e,
                pass_fds=fds,
                start_new_session=True,
            )
        process = Process(popen, out, err)
        self._started.append((process, popen))
        return process

    def end(self) -> None:
        """End what still runs, with SIGTERM first."""
        running = [popen for _, popen in self._started if popen.poll() is None]
        for popen in running:
            popen.terminate()
        for popen in running:
            try:
                popen.wait(5)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
        for _, popen in self._started:
            try:
                os.killpg(popen.pid, signal.SIGKILL)  # children that outlived it
            except (ProcessLookupError, PermissionError):
                continue


@pytest.fixture
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Start programs with processes.start(...); they end with the test."""
    started = Processes(tmp_path_factory.mktemp("processes"))
    yield started
    started.end()


# --- the embedded broker ----------------------------------------------------------------------


class EmbeddedBroker:
    """The broker of `mlops-pipeline up` and its store, with nobody who starts them again."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        from mlops_events.control.embedded import EmbeddedBroker

        self._plan = EmbeddedBroker(folder)
        self._processes = processes
        self._running: dict[str, Process] = {}
        self.port = self._plan.port
        self.address = f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start what does not run, and return when the broker takes connections."""
        for program in self._plan.programs():
            running = self._running.get(program.name)
            if running is None or running.poll() is not None:
                self._running[program.name] = self._processes.start(
                    *program.argv, env=program.env, fds=program.fds
                )
        Until().sync(self._listens)

    def stop(self) -> None:
        """Stop the broker, not its store; harmless when it is not running."""
        self._running["broker"].signal(signal.SIGTERM)
        self._running["broker"].wait()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, not its store."""
        self._running["broker"].kill()

    def close(self) -> None:
        """Let go of the store's socket."""
        self._plan.close()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def embedded_broker(
    tmp_path_factory: pytest.TempPathFactory, processes: Processes
) -> Iterator[EmbeddedBroker]:
    """Start an embedded broker for this test alone."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("embedded"), processes)
    broker.start()
    yield broker
    broker.close()


# --- waiting ----------------------------------------------------------------------------------


class Until:
    """Waits for a condition and returns its first true value."""

    async def __call__(
        self, condition: Callable[[], Any], *, within: float = 90.0, every: float = 0.02
    ) -> Any:
        """Wait in an async test; the condition may be async too."""
        end = time.monotonic() + within
        while True:
            value = condition()
            if inspect.isawaitable(value):
                value = await asyncio.wait_for(value, max(0.1, end - time.monotonic()))
            if value:
                return value
            _check(end, within, value)
            await asyncio.sleep(every)

    def sync(
        self, condition: Callable[[], Any], *, within: float = 90.0, every: float = 0.02
    ) -> Any:
        """Wait in a test that is not async."""
        end = time.monotonic() + within
        while not (value := condition()):
            _check(end, within, value)
            time.sleep(every)
        return value


def _check(end: float, within: float, value: object) -> None:
    if time.monotonic() > end:
        pytest.fail(f"not true within {within} s; last value: {value!r}")


@pytest.fixture(scope="session")
def until() -> Until:
    """Wait for a condition: await until(lambda: ..., within=5), or until.sync(...)."""
    return Until()
