"""A day of an operator at the command line: each task with the real commands, gateway and a scripted provider."""

import asyncio
import csv
import io
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.support.cli_operator import Operator, log, sit_down
from tests.support.command_line import WAIT_LIMIT_S, serving
from tests.support.gateway import HELLO, channel
from tests.support.scripted_upstream import COMPLETION, Script, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""

MODELS: Script = [answer({"object": "list", "data": [{"id": "m", "object": "model", "created": 1}]})]
REJECTED: Script = [answer({"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}, 401)]
NOTHING: Script = [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"]
PRICE = {"model": "m", "input_usd_per_million": 1, "output_usd_per_million": 2}


async def ask(operator: Operator, model: str = "m", secret: str | None = None) -> int:
    """Send one chat request; return its HTTP status."""
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
    async with operator.gateway.post({**HELLO, "model": model}, headers=headers) as response:
        await response.read()
        return int(response.status)


async def add(operator: Operator, url: str, *words: str) -> Result:
    return await operator.type("channels", "add", "lab", "--provider", "custom", "--base-url", url, *words, stdin="")


async def make_key(operator: Operator, *words: str) -> str:
    return (await operator.see("keys", "create", "--name", "laptop", *words)).strip()


async def test_a_channel_that_answers_serves_at_once(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(MODELS, [answer(COMPLETION)]) as up:
        added = await add(operator, up.base_url, "--api-key", "sk-good")
        assert (added.exit_code, "healthy" in added.stdout) == (0, True)
        assert await ask(operator) == 200
    await operator.gateway.rows(1)


@pytest.mark.parametrize("key", [(), ("--api-key", "sk-wrong")], ids=["no key", "wrong key"])
async def test_a_channel_without_a_valid_key_is_not_added_and_the_demo_stays(
    gateway_with: StartGateway, key: tuple[str, ...]
) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(REJECTED) as up:
        refused = await add(operator, up.base_url, *key)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "The channel is not added" in refused.stderr
        assert [one["name"] for one in (await operator.ask("channels"))["data"]] == ["demo"]
        forced = await add(operator, up.base_url, *key, "--force")
        assert forced.exit_code == 0
        assert "failing" in await operator.see("channels")
        assert "lab" not in await operator.see("models")
        assert await ask(operator, "demo-chat") == 200
    await operator.gateway.rows(1)


async def test_an_address_without_v1_is_named_with_the_one_that_answers(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(NOTHING, MODELS) as up:
        refused = await add(operator, up.base_url.removesuffix("/v1"), "--api-key", "sk-good")
        assert refused.exit_code == 1
        assert up.base_url in refused.stderr


async def test_a_key_is_rotated_edited_disabled_and_deleted_from_the_next_request_on(
    gateway_with: StartGateway,
) -> None:
    operator = await sit_down(gateway_with)
    first = await make_key(operator)
    second = (await operator.see("keys", "rotate", "laptop", "--overlap-h", "0")).strip()
    assert [await ask(operator, "demo-chat", secret) for secret in (first, second)] == [401, 200]
    assert await operator.see("keys", "edit", "laptop", "--models", "other") == "laptop: models none → other\n"
    assert await ask(operator, "demo-chat", second) == 403
    await operator.see("keys", "edit", "laptop", "--models", "none")
    await operator.see("keys", "disable", "laptop")
    assert await ask(operator, "demo-chat", second) == 401
    await operator.see("keys", "enable", "laptop")
    assert await ask(operator, "demo-chat", second) == 200
    await operator.see("keys", "delete", "laptop", "--yes")
    assert await ask(operator, "demo-chat", second) == 401
    await operator.gateway.rows(3)


async def test_a_limit_holds_for_a_model_without_a_price_and_says_so_when_it_is_set(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        names = ["m", "mystery"]
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url, models=names)], "price": [PRICE]})
        made = await operator.type("keys", "create", "--name", "laptop", "--quota-usd", "5")
        assert "1 model has no price: mystery" in made.stderr
        secret = made.stdout.strip()
        assert await ask(operator, "mystery", secret) == 403
        assert not up.received
        assert await ask(operator, "m", secret) == 200
        await operator.gateway.rows(2)


async def test_the_reason_of_a_failure_is_in_the_list_and_in_the_request(gateway_with: StartGateway) -> None:
    reason = "The engine is overloaded"
    async with ScriptedUpstream([answer({"error": {"message": reason, "type": "server_error"}}, 500)]) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)]})
        assert await ask(operator) == 502
        await operator.gateway.rows(1)
        listed = await operator.see("requests", "--outcome", "failed", width=200)  # also with durations of seconds
        assert reason in listed
        shown = await operator.see("requests", "show", listed.splitlines()[1].split()[0], width=160)
        assert reason in shown
        assert "upstream_error" in shown


async def test_a_table_of_costs_has_no_exponents(gateway_with: StartGateway) -> None:
    price = {"model": "m", "input_usd_per_million": 0.0001, "output_usd_per_million": 0.0002}
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url)], "price": [price]})
        assert await ask(operator) == 200
        await operator.gateway.rows(1)
        exported = await operator.type("requests", "--export", "csv")
        cost = next(csv.DictReader(io.StringIO(exported.stdout)))["cost_usd"]
        assert 0 < float(cost) < 1e-4
        assert set(cost) <= set("0123456789.")


async def test_the_only_account_is_not_deleted_in_passing(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    name = (await operator.ask("accounts"))["data"][0]["name"]
    refused = await operator.type("accounts", "delete", name, "--yes")
    assert refused.exit_code != 0
    assert name in [one["name"] for one in (await operator.ask("accounts"))["data"]]
    assert await ask(operator, "demo-chat") == 200
    await operator.gateway.rows(1)


BROKEN = """[server]
prot = 1
[[channel]]
name = "lab"
provider = "nobody"
weight = -1
"""


@pytest.mark.slow
async def test_a_reload_with_errors_lists_them_all_and_a_second_start_prints_no_key(tmp_path: Path) -> None:
    def work() -> None:
        data = tmp_path / "data"
        with serving(data, signal.SIGTERM) as server:
            before: Any = server.ask("channels")["data"]
            (tmp_path / "config").mkdir()
            (tmp_path / "config" / "gateway.toml").write_text(BROKEN)
            refused = server.invoke("reload")
            assert (refused.exit_code, refused.stdout) == (1, "")
            for problem in ("did you mean 'port'?", "channel[0].provider", "channel[0].weight"):
                assert problem in refused.stderr
            assert [one["name"] for one in server.ask("channels")["data"]] == [one["name"] for one in before]
            secret = server.secret
        (tmp_path / "config" / "gateway.toml").unlink()
        with serving(data, signal.SIGTERM) as server:
            assert "sk-" not in server.greeting
            assert "data: [DONE]" in server.chat(secret, stream=True)

    await asyncio.wait_for(asyncio.to_thread(work), 2 * WAIT_LIMIT_S)
