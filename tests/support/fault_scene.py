"""What every fault test does: set the scene, make the call, hear the answer, and audit what is left behind."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import attrs
import orjson

from gateway.domain.request_log import SUCCESS_CODE, RequestRecord, parse_attempts
from gateway.error_status import STATUS
from gateway.formats.wire.sse import SseSplitter, parse_data
from gateway.server.context import SERVICES
from tests.support.fast_provider import SwiftUpstream
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, Step, answer, chat_script

PRICE = {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}
"""1,000 nano-USD a prompt token and 2,000 a completion token."""
WORDS = ("good", "words")
TOKENS = (5, 7)
"""What the good provider reports: prompt, completion."""
_OWN_WORDS = re.compile(r"http://127\.0\.0\.1:\d+/help/reference/errors#\w+|req_[0-9a-f]{24}")
WAIT_LIMIT_S = 15
"""What is waited for comes sooner; only a machine with much else to do is this slow."""
UNHURRIED: dict[str, Any] = {
    "connect_timeout_s": 30,
    "first_byte_timeout_s": 30,
    "idle_timeout_s": 30,
    "total_timeout_s": 60,
}
"""Longer than a test waits: no timer is to be what ends the scene."""
QUICK: dict[str, Any] = {"first_byte_timeout_s": 0.15, "idle_timeout_s": 0.15}


def site(*ups: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """A configuration of channels, with a price on the model."""
    return {"channel": list(ups), "price": [PRICE], **sections}


def healthy(up: ScriptedUpstream | SwiftUpstream, **more: Any) -> dict[str, Any]:
    """The channel that is asked second, with patient timers."""
    return channel(up.base_url, "healthy", **{"priority": -1, **more})


def good_script(*, stream: bool) -> list[Step]:
    return chat_script(*WORDS) if stream else [answer(COMPLETION)]


@attrs.frozen
class Heard:
    """What the caller heard; ``whole`` says whether the answer ended as its framing promised."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool

    @property
    def events(self) -> list[bytes]:
        return SseSplitter().split(self.body)

    @property
    def request_id(self) -> str:
        return self.headers["X-Request-Id"]


async def call(gateway: RunningGateway, *, stream: bool, **body: Any) -> Heard:
    """A small chat call, heard to its end."""
    async with gateway.post({**HELLO, **body, **({"stream": True} if stream else {})}) as response:
        return await hear(response)


async def hear(response: aiohttp.ClientResponse) -> Heard:
    """An answer, as far as it came."""
    pieces: list[bytes] = []
    whole = True
    try:
        async for piece in response.content.iter_any():
            pieces.append(piece)  # noqa: PERF401 - what came before a break is wanted too
    except aiohttp.ClientError:
        whole = False
    return Heard(response.status, response.headers, b"".join(pieces), whole)


def read_word(heard: Heard) -> str:
    """What the table says of it; see ``table.py``."""
    if heard.status != 200:
        return str(heard.status)
    if b'"error"' in heard.body:
        return "frame"
    return "next" if heard.headers["x-gateway-attempts"] != "1" else "200"


def drop_own_words(text: str) -> str:
    """Return an answer without the gateway's own address and request ids.

    The address has the host of the scripted providers; its port and the ids may have any digits by chance.
    """
    return _OWN_WORDS.sub("", text)


def check_error(heard: Heard, code: str) -> None:
    """The one error object, with the status of its code, and the request id at the end of its message."""
    status = STATUS[code]
    assert heard.status == status, heard
    assert heard.headers["Content-Type"].startswith("application/json")
    _check_object(heard, heard.body, code)


def check_broken_stream(heard: Heard, code: str) -> list[bytes]:
    """A stream that ends in one error event and without the end mark; returns the events before it."""
    assert heard.status == 200
    assert heard.whole
    *before, last = heard.events
    assert b"".join([*before, last]) == heard.body, "the last event has not ended"
    assert b"[DONE]" not in heard.body
    payload = parse_data(last)
    assert payload is not None
    _check_object(heard, payload, code)
    return before


def _check_object(heard: Heard, raw: bytes, code: str) -> None:
    value = orjson.loads(raw)
    assert list(value) == ["error"]
    error = value["error"]
    assert set(error) - {"doc_url"} == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == ("new_api_error", code, None)
    assert error["message"].endswith(f" (request id: {heard.request_id})")
    assert "127.0.0.1" not in error["message"]
    assert "provider-key" not in heard.body.decode()


def cost_of(row: RequestRecord) -> int:
    return row.prompt_tokens * 1_000 + row.completion_tokens * 2_000


def read_text(events: Sequence[bytes]) -> str:
    """What the first choice of a stream says."""
    values = [orjson.loads(data) for event in events if (data := parse_data(event)) and data != b"[DONE]"]
    deltas = [value["choices"][0]["delta"] for value in values if value["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def check_trail(heard: Heard, row: RequestRecord, *outcomes: tuple[str, str]) -> None:
    """How often it was tried, to the caller and in the row. ``outcomes``: of each attempt its channel, and its end.

    The caller is told in the headers, so of what failed before them, and by its code alone.
    """
    assert heard.headers["x-gateway-attempts"] == str(row.attempts) == str(len(outcomes))
    failed = [code for _, code in outcomes if code != SUCCESS_CODE]
    tried = heard.headers.get("x-gateway-tried", "")
    assert [one.partition(";ms=")[0] for one in tried.split(", ") if one] == (
        failed[:-1] if heard.status == 200 and row.error_code else failed
    )
    kept = [(one.channel, one.code) for one in parse_attempts(row.tried)]
    assert kept == (list(outcomes) if len(outcomes) > 1 else [])


def check_charged_once(gateway: RunningGateway, cost_nanos: int) -> None:
    """The account and its key have spent exactly this, and nothing is held of them."""
    balances = gateway.app[SERVICES].billing.quota._balances
    for kind in ("account", "key"):
        balance = balances.find_balance(kind, 1)
        assert (balance.lifetime.spent_nanos - gateway.spent_before, balance.held_nanos) == (cost_nanos, 0)


async def audit(gateway: RunningGateway, *broken: ScriptedUpstream, **expected: Any) -> RequestRecord:
    """After every scenario: one row, which says ``expected``; money that adds up; no visit, no broken connection left.

    The fixture of the gateway looks for tasks, the one in ``conftest.py`` for descriptors.
    """
    (row,) = await gateway.rows(1)
    assert gateway.running == 0
    assert {name: getattr(row, name) for name in expected} == expected
    assert row.cost_nanos == cost_of(row) >= 0
    assert min(row.prompt_tokens, row.completion_tokens, row.cached_tokens) >= 0
    assert (row.usage_source == "none") == (row.prompt_tokens + row.completion_tokens == 0)
    assert row.total_ms >= (row.first_byte_ms or 0) >= 0
    assert (row.error_code is None) == (row.outcome in {"completed", "client_closed"})
    assert (row.tried == "") == (row.attempts <= 1)
    await gateway.check_books()
    check_charged_once(gateway, row.cost_nanos)
    for up in broken:
        await until(lambda up=up: up.open_connections == 0)  # type: ignore[misc]
    return row


def check_row_of_failure(row: RequestRecord, code: str, attempts: int, *, bought: bool = False) -> None:
    """Nothing was delivered: nothing is charged, except for a prompt that was ``bought``."""
    assert (row.outcome, row.error_code, row.attempts) == ("failed", code, attempts)
    charged = ("estimate", 1, 0, 1_000) if bought else ("none", 0, 0, 0)
    assert (row.usage_source, row.prompt_tokens, row.completion_tokens, row.cost_nanos) == charged
    assert row.first_byte_ms is None


def check_row_of_success(row: RequestRecord, name: str, attempts: int) -> None:
    """The provider's own numbers, on the channel that answered."""
    assert (row.outcome, row.status, row.channel, row.attempts) == ("completed", 200, name, attempts)
    assert (row.prompt_tokens, row.completion_tokens, row.usage_source) == (*TOKENS, "upstream")


async def until(condition: Callable[[], object]) -> None:
    """Return once ``condition`` holds; fail where it never does."""
    async with asyncio.timeout(WAIT_LIMIT_S):
        while not condition():  # noqa: ASYNC110 - the other end of a socket has no event to tend
            await asyncio.sleep(0.005)
