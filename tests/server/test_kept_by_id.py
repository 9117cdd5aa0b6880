"""What the process remembers of an account, a key, a request or a channel goes with it, or has a bound.

Every collection that is reachable from the application's services is measured: also those that a later change adds.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import aiohttp

from gateway.billing.rate_limiter import _MIN_SUBJECTS_TO_SWEEP
from gateway.observability.request_metrics import MAX_LABEL_SETS
from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.gateway import CHAT, RunningGateway, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

ROUNDS = 25
HI = [{"role": "user", "content": "hi"}]
BOUNDED = {
    ".billing.quota._counters._subjects": _MIN_SUBJECTS_TO_SWEEP,
    ".billing.quota._counters._callers": _MIN_SUBJECTS_TO_SWEEP,
    ".metrics.sums": MAX_LABEL_SETS,
    ".metrics.errors": MAX_LABEL_SETS,
}
"""Collections that may grow up to a bound of their own: series of a channel go on after its end."""


def list_sizes(root: object) -> dict[str, int]:
    """Return the length of every collection that gateway's objects hold, by the path of its attributes."""
    sizes: dict[str, int] = {}
    seen: set[int] = set()
    waiting = deque([("", root)])
    while waiting:
        path, one = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict | set | frozenset | list | deque):
            sizes[path] = len(one)
        waiting += ((f"{path}.{name}", value) for name, value in _list_parts(one))
    return sizes


def _list_parts(one: object) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict):
        yield from ((str(key), value) for key, value in list(one.items())[:100] if isinstance(key, str))
    elif type(one).__module__.startswith("gateway."):
        slots: Sequence[str] = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
        names = {*getattr(one, "__dict__", {}), *slots} - {"__weakref__"}
        yield from ((name, getattr(one, name)) for name in sorted(names) if hasattr(one, name))


async def measure(gateway: RunningGateway) -> dict[str, int]:
    """The sizes once every request has been stored and counted."""
    await gateway.check_books()
    await gateway._await_writing()
    await gateway.app[SERVICES].metrics.count_all()
    return list_sizes(gateway.app[SERVICES])


async def live(gateway: RunningGateway, number: int, base_url: str) -> None:
    """Make a channel, an account and a key, use them, and delete all three."""
    name = f"n{number}"
    status, reported = await ask_office(
        gateway, "POST", "/channels", {"name": name, "provider": "vllm", "base_url": base_url, "models": [f"m{number}"]}
    )
    assert status == 201, reported
    assert (await ask_office(gateway, "POST", "/accounts", {"name": name, "quota_usd": 5}))[0] == 201
    limits = {"quota_usd": 5, "rpm": 1_000, "tpm": 1_000_000, "max_concurrency": 5}
    _, key = await ask_office(gateway, "POST", "/keys", {"name": name, "account": name, **limits})
    async with aiohttp.ClientSession(gateway.url, headers={"Authorization": f"Bearer {key['secret']}"}) as client:
        for model in ("m", f"m{number}", f"unknown {number}"):
            for path, body in ((CHAT, {"messages": HI}), ("/v1/responses", {"input": "hi"})):
                async with client.post(path, json={"model": model, **body}) as response:
                    await response.read()
    for path in ("accounts", "channels"):
        status, reported = await ask_office(gateway, "DELETE", f"/{path}/{name}")
        assert status < 300, reported


async def test_what_is_kept_by_an_id_goes_with_it_or_has_a_bound(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([answer({**COMPLETION, "data": [{"id": "m"}]})]) as up:  # a list of models, too
        gateway = await standing_with(
            {"channel": [channel(up.base_url, provider="vllm")], "billing": {"unpriced": "free"}}
        )
        await live(gateway, 0, up.base_url)
        before = await measure(gateway)
        for number in range(1, ROUNDS + 1):
            await live(gateway, number, up.base_url)
        after = await measure(gateway)
        grown = {path: size for path, size in after.items() if size - before.get(path, 0) >= ROUNDS}
        assert len(before) > 50
        assert not {path: size for path, size in grown.items() if size > BOUNDED.get(path, 0)}
