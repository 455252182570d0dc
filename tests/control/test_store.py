"""The object store: what the broker asks of S3, answered from one folder."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

from mlops_events.control.http1 import Request, Response
from mlops_events.control.retention import Retention
from mlops_events.control.segments import ObjectLog
from mlops_events.control.store import ObjectStore, StoreSettings
from mlops_events.schemas.settings import Secret

RECORDS = "clusters/c/topics/t/partitions/0000000000/records/"
Ask = Callable[..., Response]


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[ObjectLog]:
    log = ObjectLog(tmp_path, segment_bytes=4000)
    yield log
    log.close()


@pytest.fixture
def ask(objects: ObjectLog) -> Ask:
    """Ask a store that does not wait for the disk."""
    store = ObjectStore(objects, StoreSettings(), clock_ms=lambda: 1_700_000_000_123)

    def send(method: str, key: str = "", *, body: bytes = b"", query: str = "", **headers: str):
        answer = store.handle(
            Request(
                method=method,
                path=f"/bucket/{key}",
                query=dict(parse_qsl(query, keep_blank_values=True)),
                headers={name.replace("_", "-"): value for name, value in headers.items()},
                body=body,
            )
        )
        assert isinstance(answer, Response)
        return answer

    return send


def test_what_was_put_is_got(ask: Ask) -> None:
    """With its tag, its size and its time."""
    put = ask("PUT", "a/b", body=b"hello")
    got = ask("GET", "a/b")
    head = ask("HEAD", "a/b")

    assert (put.status, got.status, got.body) == (200, 200, b"hello")
    assert got.headers["ETag"] == put.headers["ETag"] == head.headers["ETag"]
    assert got.headers["Last-Modified"] == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert (head.body, head.length) == (b"", 5)


def test_a_missing_object_is_not_found(ask: Ask) -> None:
    """For every way to ask for it; to delete it is no error."""
    assert ask("GET", "a").status == ask("HEAD", "a").status == 404
    assert ask("DELETE", "a").status == 204


def test_a_put_may_demand_that_there_is_none(ask: Ask) -> None:
    """How the broker makes sure that it does not overwrite a batch."""
    first = ask("PUT", "a", body=b"1", if_none_match="*")
    second = ask("PUT", "a", body=b"2", if_none_match="*")

    assert (first.status, second.status) == (200, 412)
    assert ask("GET", "a").body == b"1"


def test_a_put_may_demand_the_version_that_it_knows(ask: Ask) -> None:
    """How the broker counts up a watermark; the same bytes again are another version."""
    missing = ask("PUT", "a", body=b"0", if_match='"1"')
    first = ask("PUT", "a", body=b"1")
    second = ask("PUT", "a", body=b"1", if_match=first.headers["ETag"])
    stale = ask("PUT", "a", body=b"2", if_match=first.headers["ETag"])

    assert (missing.status, second.status, stale.status) == (412, 200, 412)
    assert second.headers["ETag"] != first.headers["ETag"]


def test_what_the_asker_has_is_not_sent_again(ask: Ask) -> None:
    """A conditional get."""
    tag = ask("PUT", "a", body=b"1").headers["ETag"]

    assert ask("GET", "a", if_none_match=tag).status == 304
    assert ask("GET", "a", if_none_match='"other"').status == 200


@pytest.mark.parametrize(
    ("span", "status", "body", "content_range"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-99", 206, b"89", "bytes 8-9/10"),
        ("bytes=10-", 416, None, None),
        ("bytes=-", 416, None, None),
    ],
)
def test_a_part_of_an_object_can_be_asked_for(
    ask: Ask, span: str, status: int, body: bytes | None, content_range: str | None
) -> None:
    """By range, from either end."""
    ask("PUT", "a", body=b"0123456789")
    answer = ask("GET", "a", range=span)

    assert answer.status == status
    assert answer.headers.get("Content-Range") == content_range
    if body is not None:
        assert answer.body == body


def test_a_listing_shows_a_prefix_in_order_with_time_and_size(ask: Ask) -> None:
    """Each key as XML that any client can read."""
    for name in ("b&2", "a1", "b<1"):
        ask("PUT", f"p/{name}", body=b"12")
    ask("PUT", "q/x")
    text = ask("GET", query="list-type=2&prefix=p/b").body.decode()

    assert text.index("<Key>p/b&amp;2</Key>") < text.index("<Key>p/b&lt;1</Key>")
    assert "<LastModified>2023-11-14T22:13:20.123+00:00</LastModified><Size>2</Size>" in text
    assert "<IsTruncated>false</IsTruncated>" in text
    assert "a1" not in text
    assert "q/x" not in text


def test_a_listing_may_stop_at_folders(ask: Ask) -> None:
    """Objects below a delimiter are shown as one."""
    for name in ("p/a/1", "p/a/2", "p/b/1", "p/c"):
        ask("PUT", name)
    text = ask("GET", query="list-type=2&prefix=p/&delimiter=/").body.decode()

    assert text.count("<Prefix>") == 2
    assert "<Prefix>p/a/</Prefix>" in text
    assert text.count("<Key>") == 1


def test_a_long_listing_comes_in_pages(objects: ObjectLog, ask: Ask) -> None:
    """Each page tells where the next one goes on."""
    for number in range(10_500):
        objects.put(f"p/{number:05d}", b"", modified_ms=0)
    first = ask("GET", query="list-type=2&prefix=p/").body.decode()
    second = ask("GET", query="list-type=2&prefix=p/&continuation-token=p/09999").body.decode()

    assert first.count("<Key>") == 10_000
    assert "<NextContinuationToken>p/09999</NextContinuationToken>" in first
    assert second.count("<Key>") == 500
    assert "<IsTruncated>false</IsTruncated>" in second


def test_many_objects_are_deleted_at_once(ask: Ask) -> None:
    """How the broker deletes a topic."""
    for name in ("a", "b&c", "d"):
        ask("PUT", name)
    body = b"<Delete><Object><Key>a</Key></Object><Object><Key>b&amp;c</Key></Object></Delete>"
    answer = ask("POST", body=body, query="delete=")

    assert answer.body.count(b"<Deleted>") == 2
    assert [ask("HEAD", name).status for name in ("a", "b&c", "d")] == [404, 404, 200]


def test_other_requests_are_refused(ask: Ask) -> None:
    """Rather than half understood."""
    assert ask("PATCH", "a").status == 501
    assert ask("POST").status == 501
    assert ask("PUT", "a", content_encoding="aws-chunked").status == 501


def test_only_the_broker_may_ask(objects: ObjectLog) -> None:
    """A web page or another user of the machine does not know the access key."""
    store = ObjectStore(objects, StoreSettings(access_key=Secret("k3y")))

    def status(**headers: str) -> int:
        answer = store.handle(
            Request(method="GET", path="/b/", query={}, headers=headers, body=b"")
        )
        assert isinstance(answer, Response)
        return answer.status

    assert status() == 403
    assert status(authorization="AWS4-HMAC-SHA256 Credential=other/2026") == 403
    assert status(authorization="AWS4-HMAC-SHA256 Credential=k3y/2026/us-east-1/s3") == 200


async def test_without_a_delay_a_write_is_answered_when_it_is_on_the_disk(
    objects: ObjectLog,
) -> None:
    """Nothing is acknowledged while the disk has not been asked to keep it."""
    store = ObjectStore(objects, StoreSettings(fsync_s=0))
    request = Request(method="PUT", path="/b/k", query={}, headers={}, body=b"1")
    answer = store.handle(request)
    assert isinstance(answer, asyncio.Task)
    before, _ = await asyncio.wait([answer], timeout=0.05)
    keeper = asyncio.create_task(store.keep())
    status = (await answer).status
    keeper.cancel()

    assert not before
    assert status == 200


async def test_cleaning_up_keeps_the_disk_within_bounds(objects: ObjectLog) -> None:
    """Whatever is written: batches, watermarks, groups."""
    limits = Retention(few_batches=10, min_age_ms=0)
    now_ms = 1000
    store = ObjectStore(objects, StoreSettings(retention=limits), clock_ms=lambda: now_ms + 1)
    sizes: list[int] = []
    for number in range(1000):
        objects.put(f"{RECORDS}{number:020d}.batch", bytes(300), modified_ms=now_ms)
        objects.put("clusters/c/watermark.json", bytes(30), modified_ms=now_ms)
        if number % 10 == 9:
            await store.clean()
            sizes.append(objects.disk_bytes)

    assert len(objects.keys(RECORDS)) == 10
    assert max(sizes) < 16_000
    assert max(sizes[50:]) <= max(sizes[:50])
