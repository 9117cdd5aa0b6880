"""A channel tells the truth: what does not answer is refused or held, and the demo serves until a channel answers."""

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from gateway.routing.channels import ChannelService
from gateway.server.context import SERVICES
from tests.support.admin_calls import ask_office
from tests.support.gateway import HELLO, RunningGateway, channel, start_gateway
from tests.support.proxies import make_context
from tests.support.scripted_upstream import COMPLETION, STALL, ScriptedUpstream, Step, answer
from tests.support.started_gateways import StartGateway

MODELS = answer({"object": "list", "data": [{"id": "m", "object": "model", "created": 7}]})
REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
NOTHING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
FAULTS = {
    "wrong key": "credentials",
    "no version": "/v1",
    "dead port": "could not be reached: connection refused (127.0.0.1:9)",
    "unknown name": "DNS lookup failed (nobody.invalid)",
    "broken TLS": "TLS certificate or handshake",
    "slow": "took too long",
}


async def break_channel(stack: AsyncExitStack, folder: Path, fault: str, *, sync: bool) -> dict[str, Any]:
    """What is posted to add a channel with this fault."""
    more: dict[str, Any] = {"models": [], "sync": True} if sync else {}
    scripts: dict[str, list[list[Step]]] = {
        "wrong key": [[REFUSED]],
        "no version": [[NOTHING], [MODELS]] * 4,
        "slow": [[STALL]],
    }
    context = make_context(folder, "127.0.0.1")[0] if fault == "broken TLS" else None
    up = await stack.enter_async_context(ScriptedUpstream(*scripts.get(fault, [[MODELS]]), tls=context))
    address = {
        "no version": up.base_url.removesuffix("/v1"),
        "dead port": "http://127.0.0.1:9/v1",
        "unknown name": "http://nobody.invalid/v1",
    }
    if fault == "slow":
        more["total_timeout_s"] = 0.2
    return channel(address.get(fault, up.base_url), "new", **more)


async def list_models(gateway: RunningGateway) -> list[str]:
    async with gateway.client.get(f"{gateway.url}/v1/models") as response:
        return [model["id"] for model in (await response.json())["data"]]


async def call(gateway: RunningGateway, model: str) -> int:
    async with gateway.post({**HELLO, "model": model}) as response:
        await response.read()
        return int(response.status)


async def show(gateway: RunningGateway, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await ask_office(gateway, "GET", f"/channels/{name}"))[1]
    return shown


def service_of(gateway: RunningGateway) -> ChannelService:
    found: ChannelService = gateway.app[SERVICES].routing.channels
    return found


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_provider_that_does_not_answer_is_refused_or_held_and_the_demo_serves(
    gateway_with: StartGateway, tmp_path: Path, fault: str, sync: bool
) -> None:
    async with AsyncExitStack() as stack:
        gateway = await gateway_with({})
        fields = await break_channel(stack, tmp_path, fault, sync=sync)
        status, refused = await ask_office(gateway, "POST", "/channels", fields)
        assert (status, refused["error"]["code"]) == (400, "invalid_request")
        assert FAULTS[fault] in refused["error"]["message"]
        assert [each.name for each in gateway.app[SERVICES].routing.catalog.channels] == ["demo"]
        status, held = await ask_office(gateway, "POST", "/channels?check=hold", fields)
        assert (status, held["health"], held["held"]) == (201, "failing", True)
        assert FAULTS[fault] in held["health_reason"]
        assert held["last_tested_at"] is not None
        assert await call(gateway, "m") == 404
        assert await call(gateway, "demo-chat") == 200
        await service_of(gateway).retry()
        assert (await show(gateway, "new"))["health"] == "failing"
        assert "demo-chat" in await list_models(gateway)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("way", ["retry", "test", "edit"])
async def test_a_held_channel_serves_once_its_provider_has_answered_and_the_demo_goes(
    gateway_with: StartGateway, way: str, sync: bool
) -> None:
    more: dict[str, Any] = {"models": [], "sync": True} if sync else {}
    scripts = [[REFUSED], [MODELS], *([[MODELS]] if way == "test" and sync else []), [answer(COMPLETION)]]
    async with ScriptedUpstream(*scripts) as up:
        gateway = await gateway_with({})
        await ask_office(gateway, "POST", "/channels?check=hold", channel(up.base_url, "new", **more))
        assert await call(gateway, "m") == 404
        if way == "retry":
            await service_of(gateway).retry()
        elif way == "test":
            await ask_office(gateway, "POST", "/channels/new/test")
        else:
            await ask_office(gateway, "PATCH", "/channels/new", {"api_keys": ["the-right-provider-key"]})
        assert await call(gateway, "m") == 200
        shown = await show(gateway, "new")
        assert (shown["name"], shown["health"], shown["health_reason"], shown["held"]) == (
            "new",
            "healthy",
            None,
            False,
        )
        assert await list_models(gateway) == ["m"]


async def test_a_demo_in_use_stays_for_an_hour_and_its_absence_says_how_to_have_it_back(
    gateway_with: StartGateway,
) -> None:
    now_s = [time.time()]
    async with ScriptedUpstream([MODELS], [answer(COMPLETION)]) as up:
        gateway = await gateway_with({}, clock=lambda: now_s[0])
        demo = await list_models(gateway)
        assert await call(gateway, "demo-chat") == 200
        await ask_office(gateway, "POST", "/channels", channel(up.base_url, "new"))
        assert await call(gateway, "m") == 200
        now_s[0] += 3_000
        await service_of(gateway).retry()
        assert (await list_models(gateway), await call(gateway, "demo-chat")) == ([*demo, "m"], 200)
        for passed in (3_000, 601):  # since the use before, and since the last one
            assert "demo-chat" in await list_models(gateway)
            await service_of(gateway).retry()
            now_s[0] += passed
        await service_of(gateway).retry()
        assert await list_models(gateway) == ["m"]
        async with gateway.post({**HELLO, "model": "demo-chat"}) as response:
            error = (await response.json())["error"]
        assert (response.status, error["code"]) == (404, "model_not_found")
        assert "`gateway channels add demo`" in error["message"]


async def test_a_demo_in_use_stays_after_a_restart(
    gateway_with: StartGateway, tmp_path: Path, template_path: Path
) -> None:
    now_s = [time.time()]
    async with ScriptedUpstream([MODELS], [answer(COMPLETION)]) as up:
        first = await start_gateway(tmp_path / "kept", template_path, {}, clock=lambda: now_s[0])
        assert await call(first, "demo-chat") == 200
        await ask_office(first, "POST", "/channels", channel(up.base_url, "new"))
        await first.close()
        for passed, demo in ((3_500, True), (200, False)):
            now_s[0] += passed
            again = await start_gateway(tmp_path / "kept", template_path, {}, clock=lambda: now_s[0])
            try:
                assert ("demo-chat" in await list_models(again)) is demo
            finally:
                await again.close()


@pytest.mark.parametrize("used", [False, True])
async def test_the_setting_keeps_the_demo_or_removes_it_at_once(gateway_with: StartGateway, used: bool) -> None:
    async with ScriptedUpstream([MODELS]) as up:
        gateway = await gateway_with({})
        demo = await list_models(gateway)
        if used:
            assert await call(gateway, "demo-chat") == 200
        await ask_office(gateway, "POST", "/channels", channel(up.base_url, "new"))
        for mode, listed in (("on", [*demo, "m"]), ("off", ["m"]), ("auto", [*demo, "m"] if used else ["m"])):
            status, _ = await ask_office(gateway, "PUT", "/settings/routing/demo", {"value": mode})
            assert (status, await list_models(gateway)) == (200, listed)
        status, refused = await ask_office(gateway, "POST", "/channels", {"name": "mine", "provider": "demo"})
        assert status == 400
        assert "routing.demo" in refused["error"]["message"]


@pytest.mark.parametrize("mode", ["on", "off"])
async def test_the_file_keeps_the_demo_or_removes_it(gateway_with: StartGateway, mode: str) -> None:
    channels = [channel("http://127.0.0.1:9/v1", "filed")] if mode == "on" else []
    gateway = await gateway_with({"channel": channels, "routing": {"demo": mode}})
    assert ("demo-chat" in await list_models(gateway), await call(gateway, "demo-chat")) == (
        (True, 200) if mode == "on" else (False, 404)
    )


async def test_the_hold_outlives_a_restart(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    await ask_office(gateway, "POST", "/channels?check=hold", channel("http://127.0.0.1:9/v1", "new"))
    service = service_of(gateway)
    await service.declare(())
    channels = gateway.app[SERVICES].routing.catalog.channels
    assert [(each.name, each.held) for each in channels] == [("new", True), ("demo", False)]


async def test_a_refused_key_is_failing_has_a_name_and_gets_no_share_as_its_channel(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([REFUSED]) as up:
        gateway = await gateway_with({})
        fields = channel(up.base_url, "new", api_keys=["short", "another-key-of-the-provider"])
        del fields["api_key"]
        status, refused = await ask_office(gateway, "POST", "/channels", fields)
        assert (status, refused["error"]["param"]) == (400, "api_key")
        await ask_office(gateway, "POST", "/channels?check=hold", fields)
        await ask_office(gateway, "POST", "/channels/new/test")
        shown = await show(gateway, "new")
        assert (shown["health"], shown["share"]) == ("failing", 0.0)
        keys = [(key["number"], key["last4"], key["state"], "credentials" in key["reason"]) for key in shown["keys"]]
        assert keys == [(1, "", "open", True), (2, "ider", "open", True)]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_refuses_is_named_and_not_the_address(gateway_with: StartGateway, scheme: str) -> None:
    async with ScriptedUpstream([answer(b"", 407)]) as proxy:
        gateway = await gateway_with({})
        way = f" http://me:wrong@127.0.0.1:{proxy.port}\n"
        fields = channel(f"{scheme}://provider.test/v1", "new", proxy=way, api_key="\tkey-with-white-space\n")
        status, refused = await ask_office(gateway, "POST", "/channels", fields)
        assert (status, refused["error"]["param"]) == (400, "proxy"), refused
        assert "The proxy refused the connection (407 Proxy Authentication Required)" in refused["error"]["message"]
        assert scheme == "https" or proxy.received[0].headers["authorization"] == "Bearer key-with-white-space"


async def test_a_key_that_works_beside_a_refused_one_is_healthy(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([REFUSED], [MODELS], [answer(COMPLETION)]) as up:
        gateway = await gateway_with(
            {"channel": [channel(up.base_url, "new", api_keys=["first", "second"], api_key=None)]}
        )
        await ask_office(gateway, "POST", "/channels/new/test")
        shown = await show(gateway, "new")
        assert (shown["health"], sorted(key["state"] for key in shown["keys"])) == ("healthy", ["closed", "open"])
        refused = [key["state"] for key in shown["keys"]].index("open")
        for _ in range(2):
            assert await call(gateway, "m") == 200
            used = {received.headers["authorization"] for received in up.received[2:]}
            shown = await show(gateway, "new")
            # A request that succeeds outweighs the test of its own key, and says nothing about the other one.
            state = "closed" if f"Bearer {('first', 'second')[refused]}" in used else "open"
            assert (shown["keys"][refused]["state"], shown["health"]) == (state, "healthy")
        assert len(used) == 2


async def test_why_a_channel_is_held_outlives_a_restart(
    gateway_with: StartGateway, tmp_path: Path, template_path: Path
) -> None:
    async with ScriptedUpstream([answer(b"down", 500)], [REFUSED]) as up:
        first = await start_gateway(tmp_path / "kept", template_path, {})
        await ask_office(first, "POST", "/channels?check=hold", channel(up.base_url, "new"))
        await ask_office(first, "POST", "/channels/new/test")  # the last reason counts
        await first.close()
    second = await start_gateway(tmp_path / "kept", template_path, {})
    try:
        _, shown = await ask_office(second, "GET", "/channels/new")
        assert (shown["health"], shown["last_tested_at"]) == ("failing", None)
        assert "credentials" in shown["health_reason"]
        assert [(key["state"], key["reason"]) for key in shown["keys"]] == [("open", shown["health_reason"])]
    finally:
        await second.close()


async def test_a_channel_of_which_many_requests_fail_is_not_simply_healthy(gateway_with: StartGateway) -> None:
    scripts = [[answer(COMPLETION)]] * 8 + [[answer(b"down", 500)], [answer(b"down", 500)], [answer(COMPLETION)]] * 4
    async with ScriptedUpstream(*scripts) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, "new")], "routing": {"max_attempts": 1}})
        for _ in range(20):
            await call(gateway, "m")
        shown = await show(gateway, "new")
        assert (shown["health"], shown["health_reason"]) == ("healthy", "8 of the last 20 requests failed")


async def test_a_server_without_a_list_is_added_untested_if_the_channel_names_its_models(
    gateway_with: StartGateway,
) -> None:
    async with ScriptedUpstream([NOTHING], [answer(COMPLETION)]) as up:
        gateway = await gateway_with({})
        status, made = await ask_office(gateway, "POST", "/channels", channel(up.base_url, "new"))
        assert (status, made["health"], made["held"]) == (201, "untested", False)
        assert await call(gateway, "m") == 200
        assert (await show(gateway, "new"))["health"] == "healthy"


async def test_a_channel_of_the_file_gets_requests_although_it_is_untested(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with({"channel": [channel(up.base_url, "filed")]})
        assert (await show(gateway, "filed"))["health"] == "untested"
        assert await call(gateway, "m") == 200


async def test_a_channel_is_disabled_whatever_its_provider_answers(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    status, made = await ask_office(
        gateway, "POST", "/channels", channel("http://127.0.0.1:9/v1", "new", status="disabled")
    )
    assert (status, made["health"]) == (201, "disabled")
