"""Streams that are taken up again: text, numbers, money and rights."""

import asyncio
import random
from typing import Any

import orjson
import pytest

from gateway.formats.wire.sse import parse_data
from gateway.server.context import SERVICES
from tests.support.admin_calls import AdminApi
from tests.support.fault_scene import UNHURRIED, until
from tests.support.gateway import CHAT, KEY, RunningGateway, channel
from tests.support.resumed_streams import (
    RESUMABLE,
    STREAM,
    STREAMED,
    CutStream,
    find_text,
    list_events,
    strip_ids,
    take_up,
    unchunk,
)
from tests.support.scripted_upstream import (
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    Received,
    ScriptedUpstream,
    Step,
    chat_events,
    chat_script,
    chunk,
)
from tests.support.started_gateways import StartGateway

OTHER_KEY = "sk-other-" + "x" * 40
PRICED = {"price": [{"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}]}
WORDS = [f"w{number} " for number in range(12)]


def config(up: ScriptedUpstream, **sections: Any) -> dict[str, Any]:
    keys = [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "other", "account": "acme", "secret": OTHER_KEY},
    ]
    return {
        "channel": [channel(up.base_url, **UNHURRIED)],
        "account": [{"name": "acme"}],
        "key": keys,
        **PRICED,
        **sections,
    }


def gated_script(gate: asyncio.Event, first: int) -> list[Step]:
    """A chat stream that goes on after ``first`` events when ``gate`` is set."""

    async def wait(_: Received) -> None:
        await gate.wait()

    events = [chunk(event) for event in chat_events(*WORDS)]
    return [SSE_HEAD, *events[:first], wait, *events[first:], LAST_CHUNK]


def find_streams(gateway: RunningGateway) -> dict[str, Any]:
    made = gateway.app[SERVICES].open_streams.instance
    return {} if made is None else made.streams


async def test_a_stream_is_taken_up_after_the_client_left(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(gated_script(gate, 3)) as up:
        gateway = await gateway_with(config(up))
        stream = await CutStream.open(gateway.url)
        await stream.read_events(3)
        assert stream.received.startswith(f": {STREAM} {stream.id}\n\n".encode())
        stream.cut()
        await until(lambda: find_streams(gateway)[stream.id].reader_count == 0)
        reading = asyncio.create_task(take_up(gateway, stream.id, 2))
        await until(lambda: find_streams(gateway)[stream.id].reader_count == 1)
        gate.set()
        numbers, events = await reading
        whole = [*list_events(stream.received)[:2], *events]
        assert whole == [*chat_events(*WORDS)[:-2], whole[-1]]  # the usage frame was not asked for
        assert numbers == list(range(3, 3 + len(events)))
        assert find_text(whole) == "".join(WORDS)
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.completion_tokens, row.usage_source, row.attempts) == ("completed", 7, "upstream", 1)
        assert (len(up.received), row.cost_nanos) == (1, 5 * 1000 + 7 * 2000)
        assert await take_up(gateway, stream.id) == (list(range(1, len(whole) + 1)), whole)


async def cut_streams(gateway: RunningGateway, count: int, rng: random.Random) -> None:
    """Cut streams at random bytes, and take each up at two random events at once; one of the two is cut again."""
    whole = chat_events(*WORDS, usage=False)
    length = sum(map(len, whole))
    for _ in range(count):
        stream = await CutStream.open(gateway.url)
        raw = await stream.read_raw(rng.randrange(length))
        stream.cut()
        received = list_events(unchunk(raw))
        after = rng.randint(0, len(received))
        again, (numbers, events) = await asyncio.gather(
            take_up_twice(gateway, stream.id, rng.randint(0, after), rng.randrange(length)),
            take_up(gateway, stream.id, after),
        )
        assert [*received[:after], *events] == whole
        assert numbers == list(range(after + 1, len(whole) + 1))
        assert again == whole[len(whole) - len(again) :]


async def take_up_twice(gateway: RunningGateway, stream_id: str, after: int, size: int) -> list[bytes]:
    """The events after number ``after``, read in two parts: the connection is lost after ``size`` bytes."""
    raw = b""
    async with gateway.client.get(f"{gateway.url}/v1/streams/{stream_id}?after={after}") as response:
        while len(raw) < size and (data := await response.content.read(size - len(raw))):
            raw += data
        response.close()
    numbers, first = strip_ids(list_events(raw))
    _, rest = await take_up(gateway, stream_id, numbers[-1] if numbers else after)
    return [*first, *rest]


async def check_cut_streams(gateway_with: StartGateway, workers: int, count: int) -> None:
    rng, total = random.Random(38), workers * count  # noqa: S311 - where streams are cut
    async with ScriptedUpstream(chat_script(*WORDS)) as up:
        gateway = await gateway_with(config(up))
        await asyncio.gather(*(cut_streams(gateway, count, rng) for _ in range(workers)))
        rows = await gateway.rows(total)
        assert {(row.outcome, row.cost_nanos, row.attempts) for row in rows} == {("completed", 19_000, 1)}
        assert (len(rows), len(up.received)) == (total, total)


async def test_streams_cut_anywhere_are_taken_up_anywhere(gateway_with: StartGateway) -> None:
    await check_cut_streams(gateway_with, 3, 15)


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_a_thousand_streams_cut_anywhere_are_taken_up_anywhere(gateway_with: StartGateway) -> None:
    await check_cut_streams(gateway_with, 8, 125)


async def test_readers_go_on_at_their_own_pace(gateway_with: StartGateway) -> None:
    words = ["x" * 1000] * 4000  # far more than the kernel and the gateway buffer for a client that does not read
    async with ScriptedUpstream(chat_script(*words)) as up:
        gateway = await gateway_with(config(up))
        slow = await CutStream.open(gateway.url)
        numbers, events = await take_up(gateway, slow.id)  # comes to the end before the first client reads
        assert len(numbers) == len(words) + 2
        async with gateway.client.get(f"{gateway.url}/v1/streams/{slow.id}") as response:
            described = await response.json()  # it is settled, whatever the first client has read
        assert (described["status"], described["usage"]["completion_tokens"]) == ("completed", 7)
        while await slow.read_chunk():
            pass
        assert list_events(slow.received) == events
        slow.cut()


async def test_the_stream_is_described_and_cancelled(gateway_with: StartGateway) -> None:
    gate = asyncio.Event()
    async with ScriptedUpstream(gated_script(gate, 3), chat_script(*WORDS)) as up:
        gateway = await gateway_with(config(up))
        stream = await CutStream.open(gateway.url)
        await stream.read_events(3)
        url = f"{gateway.url}/v1/streams/{stream.id}"
        async with gateway.client.get(url) as response:
            described = await response.json()
        assert (described["status"], described["events"], described["usage"]) == ("in_progress", 3, None)
        reading = asyncio.create_task(take_up_raw(gateway, stream.id, 3))
        await until(lambda: find_streams(gateway)[stream.id].reader_count == 2)
        async with gateway.client.delete(url) as response:
            assert (response.status, (await response.json())["deleted"]) == (200, True)
        (error,) = list_events(await reading)
        assert b"request_cancelled" in error
        async with gateway.client.get(url) as response:
            assert response.status == 404
        (row,) = await gateway.rows(1)
        assert row.outcome == "cancelled"
        stream.cut()
        gate.set()

        other = await CutStream.open(gateway.url)
        await other.read_events(len(WORDS))
        await take_up(gateway, other.id)
        async with gateway.client.get(f"{gateway.url}/v1/streams/{other.id}") as response:
            described = await response.json()
        assert (described["status"], described["events"]) == ("completed", len(WORDS) + 2)
        assert described["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
        assert described["cost_usd"] == 0.000019
        other.cut()


async def take_up_raw(gateway: RunningGateway, stream_id: str, after: int) -> bytes:
    url = f"{gateway.url}/v1/streams/{stream_id}?after={after}"
    async with gateway.client.get(url) as response:
        return bytes(await response.read())


async def test_only_the_key_and_its_token_reach_a_stream(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script(*WORDS)) as up:
        gateway = await gateway_with(config(up))
        first, second = await CutStream.open(gateway.url), await CutStream.open(gateway.url)
        for stream in (first, second):
            await take_up(gateway, stream.id)
        url = f"{gateway.url}/v1/streams/{first.id}"

        async def ask(method: str, key: str, address: str = url) -> tuple[int, Any]:
            headers = {"Authorization": f"Bearer {key}"}
            async with gateway.client.request(method, address, headers=headers) as response:
                raw = await response.read()
                return response.status, orjson.loads(raw) if response.content_type == "application/json" else raw

        for method, address in (("GET", url), ("DELETE", url), ("POST", f"{url}/token"), ("GET", f"{url}?after=0")):
            assert (await ask(method, OTHER_KEY, address))[0] == 404
        status, made = await ask("POST", KEY, f"{url}/token")
        token = made["token"]
        assert status == 200
        assert (await ask("GET", token))[1]["id"] == first.id
        status, raw = await ask("GET", token, f"{url}?after=0")
        assert find_text(list_events(raw)) == "".join(WORDS)
        other_url = f"{gateway.url}/v1/streams/{second.id}"
        assert (await ask("GET", token, other_url))[0] == 401
        assert (await ask("GET", token, f"{gateway.url}/v1/models"))[0] == 401
        assert (await ask("POST", token, f"{url}/token"))[0] == 403
        head, _, signature = token.rpartition("_")
        assert (await ask("GET", f"{head}_{'0' * len(signature)}"))[0] == 401
        (key,) = [key for key in (await AdminApi(gateway)("GET", "/keys"))["data"] if key["name"] == "test"]
        expires, _, rest = token.removeprefix("stt_").partition("_")
        assert (await ask("GET", f"stt_{int(expires) + 1}_{rest}"))[0] == 401
        assert rest.startswith(f"{key['id']}_")
        assert (await ask("DELETE", token))[0] == 200
        for stream in (first, second):
            stream.cut()


@pytest.mark.parametrize(
    ("query", "headers", "problem"),
    [
        ("?after=-1", {}, "after"),
        ("?after=x", {}, "after"),
        ("?after=99", {}, "14 events so far"),
        ("?after=0", {"Last-Event-ID": "1.5"}, "Last-Event-ID"),
    ],
)
async def test_a_wrong_number_is_refused(
    gateway_with: StartGateway, query: str, headers: dict[str, str], problem: str
) -> None:
    async with ScriptedUpstream(chat_script(*WORDS)) as up:
        gateway = await gateway_with(config(up))
        stream = await CutStream.open(gateway.url)
        await take_up(gateway, stream.id)
        async with gateway.client.get(f"{gateway.url}/v1/streams/{stream.id}{query}", headers=headers) as response:
            assert response.status == 400
            assert problem in (await response.json())["error"]["message"]
        headers = {"Last-Event-ID": "12"}
        async with gateway.client.get(f"{gateway.url}/v1/streams/{stream.id}?after=3", headers=headers) as response:
            assert strip_ids(list_events(await response.read()))[0] == [13, 14]
        stream.cut()


async def test_a_stream_that_nobody_reads_ends_and_is_charged(gateway_with: StartGateway) -> None:
    script: list[Step] = [SSE_HEAD, *(chunk(event) for event in chat_events(*WORDS)[:3]), STALL]
    async with ScriptedUpstream(script) as up:
        up_channel = channel(up.base_url, **UNHURRIED)
        gateway = await gateway_with(config(up, channel=[up_channel], streams={"keep_s": 1}))
        stream = await CutStream.open(gateway.url)
        await stream.read_events(3)
        stream.cut()
        await asyncio.wait_for(up.hung_up.wait(), 30)
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.status, row.usage_source) == ("client_closed", 200, "estimate")
        assert row.cost_nanos > 0
        raw = await take_up_raw(gateway, stream.id, 3)
        assert len(list_events(raw)) == 1
        assert b"error" in raw
        await until(lambda: not find_streams(gateway))


async def test_a_stream_that_is_too_long_goes_on_as_an_ordinary_one(gateway_with: StartGateway) -> None:
    words = ["x" * 1000] * 2000
    async with ScriptedUpstream(chat_script(*words)) as up:
        gateway = await gateway_with(config(up, streams={"max_mb": 1}))
        slow = await CutStream.open(gateway.url)
        await slow.read_events(1)
        raw = await take_up_raw(gateway, slow.id, 0)
        *events, error = list_events(raw)
        assert f"after event {len(events)}".encode() in error
        assert b"stream_interrupted" in error
        while await slow.read_chunk():
            pass
        assert find_text(list_events(slow.received)) == "".join(words)
        slow.cut()
        (error,) = list_events(await take_up_raw(gateway, slow.id, len(words)))  # the first client has all of these
        assert f"after event {len(words)};".encode() in error
        assert b"stream_interrupted" in error
        (row,) = await gateway.rows(1)
        assert (row.outcome, row.completion_tokens) == ("completed", 7)


async def test_a_key_asks_for_all_its_streams_and_a_request_refuses(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script(*WORDS)) as up:
        key = {"name": "test", "account": "acme", "secret": KEY, "resumable": True}
        gateway = await gateway_with(config(up, key=[key]))
        for headers, resumable in (({}, True), ({RESUMABLE: "false"}, False), ({RESUMABLE: "TRUE"}, True)):
            async with gateway.post(STREAMED, headers=headers) as response:
                assert (STREAM in response.headers) == resumable
                assert find_text(list_events(await response.read())) == "".join(WORDS)
        async with gateway.post(STREAMED, headers={RESUMABLE: "maybe"}) as response:
            assert (response.status, (await response.json())["error"]["param"]) == (400, RESUMABLE)
        assert len(up.received) == 3


async def test_events_of_any_form_have_their_number_in_a_line_of_their_own(gateway_with: StartGateway) -> None:
    events = chat_events(*WORDS)
    raw = [events[0], b"\n" + events[1], b"id: 99\n" + events[2], *events[3:]]
    crlf = [event.replace(b"\n", b"\r\n") for event in raw]
    async with ScriptedUpstream(
        [SSE_HEAD, *map(chunk, raw), LAST_CHUNK], [SSE_HEAD, *map(chunk, crlf), LAST_CHUNK]
    ) as up:
        gateway = await gateway_with(config(up))
        for _ in range(2):
            stream = await CutStream.open(gateway.url)
            numbers, taken = await take_up(gateway, stream.id)
            assert numbers == list(range(1, len(WORDS) + 3))
            assert [parse_data(event) for event in taken] == list(map(parse_data, chat_events(*WORDS, usage=False)))
            stream.cut()


async def test_a_stream_ends_honestly_if_the_gateway_is_stopped(gateway_with: StartGateway) -> None:
    script: list[Step] = [SSE_HEAD, *(chunk(event) for event in chat_events(*WORDS)[:3]), STALL]
    async with ScriptedUpstream(script) as up:
        up_channel = channel(up.base_url, **UNHURRIED)
        gateway = await gateway_with(config(up, channel=[up_channel], server={"drain_timeout_s": 0.2}))
        stream = await CutStream.open(gateway.url)
        await stream.read_events(3)
        stream.cut()
        await until(lambda: find_streams(gateway)[stream.id].reader_count == 0)
        reading = asyncio.create_task(take_up_raw(gateway, stream.id, 1))
        await until(lambda: find_streams(gateway)[stream.id].reader_count == 1)
        await gateway.stop()
        *events, error = list_events(await reading)
        assert strip_ids([*events, error])[0] == [2, 3, 4]
        assert b"shutting down" in error


async def test_without_the_header_nothing_is_kept(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script(*WORDS)) as up:
        gateway = await gateway_with(config(up))
        async with gateway.post(STREAMED) as response:
            assert STREAM not in response.headers
            await response.read()
            request_id = response.headers["X-Request-Id"]
        assert gateway.app[SERVICES].open_streams.instance is None
        async with gateway.client.get(f"{gateway.url}/v1/streams/st_{request_id[4:]}?after=0") as response:
            assert response.status == 404
        assert up.received[0].path == CHAT


@pytest.mark.parametrize("path", ["/users/forget", "/bodies/delete", "/accounts/other"])
async def test_nothing_of_a_forgotten_user_can_be_read(gateway_with: StartGateway, path: str) -> None:
    async with ScriptedUpstream(chat_script(*WORDS)) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, **UNHURRIED)]})
        admin = AdminApi(gateway)
        await admin("POST", "/accounts", {"name": "other"}, status=201)
        key = await admin("POST", "/keys", {"name": "k", "account": "other"}, status=201)
        for user in ("ann", "bob"):
            headers = {"Authorization": f"Bearer {key['secret']}", "x-gateway-user": user, RESUMABLE: "true"}
            async with gateway.post(STREAMED, headers=headers) as response:
                await response.read()
        await gateway.rows(2)
        assert len(find_streams(gateway)) == 2
        if path == "/accounts/other":
            await admin("DELETE", f"{path}?confirm=other")
        else:
            await admin("POST", path, {"user": "ann"})
        left = [] if path == "/accounts/other" else ["bob"]
        assert [stream.end_user for stream in find_streams(gateway).values()] == left
