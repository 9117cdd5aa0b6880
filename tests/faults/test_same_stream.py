"""U7 and U16: however the bytes were cut and whatever their line ends, the same valid stream leaves."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.chat.openai.chat import ChatPassthrough, parse_chat_inference
from gateway.formats.wire.sse import BOM
from tests.support.fault_scene import audit, call, site, until
from tests.support.gateway import HELLO, channel
from tests.support.scripted_upstream import (
    COMPLETION,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STALL,
    Received,
    ScriptedUpstream,
    answer,
    chat_script,
    chunk,
    delta,
    event,
    usage_frame,
)
from tests.support.started_gateways import StartGateway

ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}
HEAD = b": a comment\n\nevent: message\n" + event(delta("Grüße, 世界 🌍")) + b"\n: between\n"
MIDDLE = event(delta('says "error" and [] and [DONE]')) + b'data: {"choices": [],\ndata:  "two": "lines"}\n\n'
FINISH = event(delta("", "stop"))
TAIL = DONE
WANTED = HEAD + MIDDLE + FINISH + TAIL
SENT = HEAD + MIDDLE + FINISH + event(usage_frame()) + TAIL


def with_ends(raw: bytes, end: str) -> bytes:
    return raw.replace(b"\n", ENDS[end])


def gated(*pieces: bytes) -> tuple[bytes, bool]:
    """What leaves, and whether the stream was complete."""
    transform = ChatPassthrough(
        parse_chat_inference({**HELLO, "stream": True})
    )  # which does not ask for the usage frame
    out = b"".join([transform.feed(piece) for piece in pieces])
    assert transform.error is None
    return out, transform.ended


@pytest.mark.parametrize("bom", [b"", BOM], ids=["", "BOM"])
@pytest.mark.parametrize("end", ENDS)
def test_every_cut_in_two_gives_the_same_bytes(end: str, bom: bytes) -> None:
    sent, wanted = with_ends(SENT, end), with_ends(WANTED, end)
    assert gated(bom + sent) == (wanted, True)
    sent = bom + sent
    different = [cut for cut in range(len(sent) + 1) if gated(sent[:cut], sent[cut:]) != (wanted, True)]
    assert different == []


@pytest.mark.parametrize("end", ENDS)
def test_one_byte_at_a_time_gives_the_same_bytes(end: str) -> None:
    sent = BOM + with_ends(SENT, end)
    assert gated(*(sent[index : index + 1] for index in range(len(sent)))) == (with_ends(WANTED, end), True)


def cut_at(raw: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % len(raw) for cut in cuts), len(raw)]
    return [raw[start:stop] for start, stop in pairwise(edges)]


@given(st.sampled_from(sorted(ENDS)), st.lists(st.integers(min_value=0), max_size=12))
def test_any_cuts_give_the_same_bytes(end: str, cuts: list[int]) -> None:
    assert gated(*cut_at(with_ends(SENT, end), cuts)) == (with_ends(WANTED, end), True)


@given(st.sampled_from(sorted(ENDS)), st.lists(st.integers(min_value=0), max_size=12))
def test_any_cuts_lose_no_event_and_tear_none(end: str, cuts: list[int]) -> None:
    """The weaker promise, on which a client depends: the same lines, blank ones aside, and one end mark."""
    out, ended = gated(*cut_at(with_ends(SENT, end), cuts))
    assert ended
    assert [line for line in out.splitlines() if line] == [line for line in WANTED.splitlines() if line]
    assert out.endswith(ENDS[end])


@pytest.mark.parametrize("after", [DONE, event(delta("late")), b"garbage", b"\n\n", event(usage_frame())])
@given(cut=st.integers(min_value=0, max_value=400))
def test_what_follows_the_end_mark_is_dropped(after: bytes, cut: int) -> None:
    sent = event(delta("a")) + DONE + after
    assert gated(sent[:cut], sent[cut:]) == (event(delta("a")) + DONE, True)


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_that_drips_byte_by_byte_leaves_whole(standing_with: StartGateway, end: str) -> None:
    sent = BOM + with_ends(SENT, end)
    drips = [chunk(sent[index : index + 1]) for index in range(len(sent))]
    async with ScriptedUpstream([SSE_HEAD, *drips, LAST_CHUNK]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        heard = await call(gateway, stream=True)
        assert [line for line in heard.body.splitlines() if line] == [line for line in WANTED.splitlines() if line]
        assert not heard.body.startswith(BOM)
        await audit(gateway, outcome="completed", usage_source="upstream", prompt_tokens=5)


@pytest.mark.parametrize("pause", [0, 0.01], ids=["at once", "later"])
@pytest.mark.parametrize("after", [DONE, event(delta("late")), b"data: {", event(usage_frame(900, 900))])
async def test_a_caller_hears_nothing_after_the_end_mark(
    standing_with: StartGateway, after: bytes, pause: float
) -> None:
    end = [chunk(DONE), pause, chunk(after), STALL] if pause else [chunk(DONE + after), LAST_CHUNK]
    async with ScriptedUpstream([SSE_HEAD, chunk(event(delta("a"))), *end]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        heard = await call(gateway, stream=True)
        assert (heard.body, heard.whole) == (event(delta("a")) + DONE, True)
        # A body that goes on after its end mark breaks its connection; one that ends with it may keep it.
        await audit(gateway, *([up] if pause else []), outcome="completed")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause", [0, 0.02], ids=["with the end", "after the end"])
async def test_an_answer_nobody_asked_for_never_reaches_the_next_caller(
    standing_with: StartGateway, pause: float, stream: bool
) -> None:
    evil = b"".join(chat_script("evil")) if stream else answer({**COMPLETION, "evil": True})  # type: ignore[arg-type]
    mine = b"".join(chat_script("mine")) if stream else answer({**COMPLETION, "mine": True})  # type: ignore[arg-type]
    sent: list[Received] = []

    async def note(received: Received) -> None:
        sent.append(received)

    first = [*([mine, pause, evil] if pause else [mine + evil]), note]
    async with ScriptedUpstream(first, [mine]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        assert b"mine" in (await call(gateway, stream=stream)).body
        # From here on the second answer lies on the connection that waits to be used again.
        await gateway.rows(1)
        await until(lambda: sent)
        assert b"mine" in (await call(gateway, stream=stream)).body
        assert [seen.connection for seen in up.received] == [1, 2]
        assert [row.outcome for row in await gateway.rows(2)] == ["completed", "completed"]
