"""Sinks of a running gateway: rows and kept bodies on their way, the command, the alert, and what is never sent."""

from typing import Any

import pytest

from gateway.server.context import SERVICES
from gateway.sinks.service import SinkService
from tests.support.admin_calls import AdminApi
from tests.support.alert_receivers import receiving
from tests.support.cli_operator import log, sit_down
from tests.support.fault_scene import PRICE, until
from tests.support.gateway import HELLO, RunningGateway, channel
from tests.support.gateway_process import eventually
from tests.support.scrapes import find_value, scrape
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.sink_receivers import KINDS, SinkReceiver, open_receiver
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""
MARKER = "a-very-secret-question"


def find_service(gateway: RunningGateway) -> SinkService:
    service: SinkService | None = gateway.app[SERVICES].sinks
    assert service is not None
    return service


async def start(gateway_with: StartGateway, up: ScriptedUpstream, sinks: list[Any], **tables: Any) -> RunningGateway:
    """Start a gateway whose sinks have begun."""
    config = {"channel": [channel(up.base_url, models=["m", "s"])], "price": [PRICE], "sink": sinks, **tables}
    gateway = await gateway_with(config)
    await until(lambda: all(sink.worker.state is not None for sink in find_service(gateway).sinks))
    return gateway


async def ask(gateway: RunningGateway, **fields: Any) -> str:
    body = {**HELLO, **fields}
    async with gateway.post(body) as response:
        await response.read()
        return str(response.headers["X-Request-Id"])


@pytest.mark.parametrize("receiver_kind", KINDS)
async def test_requests_arrive_with_their_fields(gateway_with: StartGateway, receiver_kind: str) -> None:
    async with open_receiver() as receiver, ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await start(gateway_with, up, [receiver.table(receiver_kind)])
        request_id = await ask(gateway, messages=[{"role": "user", "content": MARKER}])
        await receiver.wait(1)
        (taken,) = receiver.accepted
        assert taken.request_id == request_id
        assert MARKER not in str(receiver.accepted)
        if receiver_kind == "webhook":
            assert (taken.values["model"], taken.values["outcome"], taken.values["prompt_tokens"]) == (
                "m",
                "completed",
                5,
            )
        else:
            assert taken.values["gen_ai.provider.name"] == "custom"
            assert taken.values["gen_ai.usage.input_tokens"] == 5


async def test_a_failing_sink_holds_nothing_up(gateway_with: StartGateway) -> None:
    async with open_receiver() as good, open_receiver() as bad, ScriptedUpstream([answer(COMPLETION)]) as up:
        bad.decide = lambda _: 503
        gateway = await start(gateway_with, up, [bad.table("traces"), good.table("webhook")])
        for _ in range(3):
            await ask(gateway)
        await good.wait(3)
        await until(lambda: bool(bad.taken))
        families = await scrape(gateway)
        assert find_value(families, "gateway_sink_requests_total", sink="traces") == 0
        ask_admin = AdminApi(gateway)

        async def is_noted() -> bool:
            return bool((await ask_admin("GET", "/sinks"))["data"][1]["delivered"] == 3)

        await eventually(is_noted, 30)
        first, second = (await ask_admin("GET", "/sinks"))["data"]
        assert (first["delivered"], first["last_error"]) == (0, "127.0.0.1 answered with status 503: not now")
        assert (second["lost"], second["last_error"], second["lag_s"]) == (0, None, 0)


async def test_kept_bodies_are_delivered_redacted_and_not_once_they_are_deleted(gateway_with: StartGateway) -> None:
    async with open_receiver() as full, open_receiver() as rows, ScriptedUpstream([answer(COMPLETION)]) as up:
        sinks = [full.table("webhook", name="full", fields="full"), rows.table("webhook", name="rows")]
        gateway = await start(gateway_with, up, sinks, requests={"keep_bodies": "all"})
        question = f"{MARKER} to ann@example.com"
        await ask(gateway, messages=[{"role": "user", "content": question}])
        await full.wait(1)
        await rows.wait(1)
        asked, answered = full.accepted[0].values["bodies"]
        assert (asked["kind"], answered["kind"]) == ("request", "answer")
        assert MARKER in asked["content"]
        assert "ann@example.com" not in str(full.accepted)
        assert "bodies" not in rows.accepted[0].values
        full.decide = lambda _: 503
        kept_id = await ask(gateway, messages=[{"role": "user", "content": "kept"}])
        async with gateway.post(
            {**HELLO, "messages": [{"role": "user", "content": "private"}]}, headers={"x-gateway-keep": "no"}
        ) as response:
            await response.read()
        await until(lambda: kept_id in full.list_ids())
        await AdminApi(gateway)("POST", "/bodies/delete", {"request": kept_id})
        full.taken.clear()
        full.decide = lambda _: 200
        await full.wait(3)
        later = {taken.request_id: taken.values for taken in full.taken}
        assert len(later) == 2
        assert not any("bodies" in values for values in later.values())


async def test_a_stream_arrives_as_messages(gateway_with: StartGateway) -> None:
    async with open_receiver() as receiver, ScriptedUpstream(chat_script("good", " words")) as up:
        sinks = [receiver.table("logs", fields="full")]
        gateway = await start(gateway_with, up, sinks, requests={"keep_bodies": "all"})
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
        await ask(gateway, messages=messages, stream=True)
        await receiver.wait(1)
        values = receiver.accepted[0].values
        assert values["eventName"] == "gen_ai.client.inference.operation.details"
        assert values["gen_ai.input.messages"][1] == {
            "role": "user", "parts": [{"type": "text", "content": "hello"}],
        }  # fmt: skip
        (output,) = values["gen_ai.output.messages"]
        assert output["parts"] == [{"type": "text", "content": "good words"}]
        assert output["finish_reason"] == "stop"


async def test_the_command_lists_and_tests(gateway_with: StartGateway, unused_tcp_port: int) -> None:
    async with open_receiver() as receiver:
        gone = SinkReceiver(f"http://127.0.0.1:{unused_tcp_port}")
        sinks = [receiver.table("langfuse"), gone.table("webhook", name="gone")]
        operator = await sit_down(gateway_with, {"sink": sinks})
        assert await operator.see("sinks", "test", "langfuse", width=200) == (
            "langfuse: delivered: 127.0.0.1 answered with status 200: {}\n"
        )
        (sample,) = receiver.taken
        assert sample.values["gateway.account"] == "sink-test"
        assert sample.values["langfuse.trace.tags"] == ["gateway=sink-test"]
        failed = await operator.type("sinks", "test", "gone")
        assert (failed.exit_code, failed.stdout.startswith("gone: not delivered: 127.0.0.1 cannot be reached")) == (
            1,
            True,
        )
        listed = await operator.see("sinks", width=200)
        assert listed.splitlines()[0].split() == [
            "SINK", "KIND", "ADDRESS", "FIELDS", "DELIVERED", "LOST", "LAG", "LAST",
        ]  # fmt: skip
        assert "/hook" not in listed
        missing = await operator.type("sinks", "test", "nobody")
        assert (missing.exit_code, "No [[sink]] has the name 'nobody'" in missing.stderr) == (1, True)


async def test_without_sinks_that_is_said(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    assert "No sinks" in (await operator.type("sinks")).output
    refused = await operator.type("sinks", "test", "ops")
    assert (refused.exit_code, "No [[sink]] has the name 'ops'" in refused.stderr) == (1, True)
    assert operator.gateway.app[SERVICES].sinks is None


async def test_a_sink_that_is_behind_and_one_that_lost_rows_are_one_alert(gateway_with: StartGateway) -> None:
    now_s = [1_900_000_000.0]
    async with open_receiver() as receiver, receiving() as alerts, ScriptedUpstream([answer(COMPLETION)]) as up:
        receiver.decide = lambda _: 503
        sinks = [receiver.table("traces"), receiver.table("logs")]
        target = {"name": "ops", "url": alerts.url, "kinds": ["sink_behind"]}
        config = {"channel": [channel(up.base_url)], "price": [PRICE], "sink": sinks, "alert": [target]}
        gateway = await gateway_with(config, clock=lambda: now_s[0])
        service, watcher = find_service(gateway), gateway.app[SERVICES].alerts
        assert watcher is not None
        await until(lambda: all(sink.worker.state is not None for sink in service.sinks))
        await ask(gateway)

        async def has_noticed() -> bool:
            return all(state.waiting_ms is not None for state in await service.read_states())

        await eventually(has_noticed, 30)
        await watcher.check()
        now_s[0] += 599
        await watcher.check()
        assert alerts.posts == []
        now_s[0] += 10
        await watcher.check()
        await until(lambda: len(alerts.posts) == 1)
        message = alerts.posts[0].json["message"]
        assert message.startswith("The sink logs is 10 minutes behind: 127.0.0.1 answered with status 503")
        assert "The same holds for 1 more: traces" in message
        await watcher.check()
        assert len(alerts.posts) == 1
