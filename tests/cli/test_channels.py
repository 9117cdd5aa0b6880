"""The commands about channels, as an operator sees them: made, changed, tested, explained; the file read again."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.main import main
from gateway.cli.output import print_reload
from gateway.cli.output_channels import format_health, print_replaced_channels
from gateway.cli.output_explain import format_price
from gateway.cli.requests import REQUESTS
from gateway.cli.resource_options import channel_options
from gateway.cli.text import format_some
from tests.support.cli_operator import log, sit_down  # noqa: F401 - fixtures
from tests.support.command_line import GATEWAY, WAIT_LIMIT_S, environment, run_many, serving
from tests.support.gateway import channel, channels
from tests.support.scripted_upstream import COMPLETION, Script, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

GOOD_KEY = "sk-good-0123456789abcd"
OTHER_KEY = "sk-other-0123456789wxyz"
REFUSED = answer({"error": {"message": "no", "type": "auth", "code": "invalid_api_key"}}, 401)
FAILED = answer({"error": {"message": "no"}}, 500)


def listing(*models: str) -> Script:
    """A provider that has these models."""
    items = [{"id": model, "object": "model", "created": 1, "owned_by": "them"} for model in models]
    return [answer({"object": "list", "data": items})]


async def test_a_channel_is_added_changed_disabled_enabled_and_deleted(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(listing("a", "b")) as up:
        made = await operator.add(up, "--api-key", GOOD_KEY, "--group", "vip, x", "--max-concurrency", "3")
        assert (made["origin"], made["key_count"], made["offers"], made["sync"]) == ("stored", 1, 2, True)
        assert (made["groups"], made["max_concurrency"]) == (["vip", "x"], 3)
        queue = ["--queue", "length=5, wait_s=1.5,one_model=true"]
        queued = await operator.ask("channels", "edit", "lab", *queue)
        assert queued["queue"] == {"length": 5, "wait_s": 1.5, "one_model": True, "switch_after_s": 20.0}
        assert "0 of 5 waiting, for at most 1.5 s, one model at a time" in await operator.see("channels", "show", "lab")
        await operator.ask("channels", "edit", "lab", "--queue", "none")
        edit = ["channels", "edit", "lab", "--name", "lab2", "--group", "none", "--max-concurrency", "none"]
        more = ["--priority", "-5", "--weight", "7", "--rpm", "9", "--idle-timeout", "0.5", "--price-multiplier", "1.5"]
        changed = await operator.ask(*edit, *more)
        assert (changed["name"], changed["groups"], changed["max_concurrency"]) == ("lab2", [], None)
        assert (changed["priority"], changed["weight"], changed["rpm"]) == (-5, 7, 9)
        assert (changed["idle_timeout_s"], changed["price_multiplier"]) == (0.5, 1.5)
        assert changed["key_count"] == 1  # what is secret and was not named stays
        assert await operator.see("channels", "disable", "lab2") == "The channel lab2 is disabled.\n"
        assert "disabled" in await operator.see("channels")
        assert await operator.see("channels", "enable", "lab2") == "The channel lab2 is active.\n"
        kept = await operator.type("channels", "delete", "lab2", stdin="n\n")
        assert kept.exit_code == 1
        assert await operator.see("channels", "delete", "lab2", "--yes") == "The channel lab2 is deleted.\n"
        assert "lab2" not in await operator.see("channels")


async def test_the_demo_is_had_back_beside_a_channel(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(listing("a")) as up:
        await operator.add(up)
        assert "demo-chat" not in await operator.see("models")
        assert re.fullmatch(r"The demo is on: \d+ models\n", await operator.see("channels", "add", "demo"))
        assert "demo-chat" in await operator.see("models")
    for words, text in (
        (["demo", "--rpm", "5"], "leave out --rpm"),
        (["demo", "--no-sync"], "leave out --sync"),
        (["demo", "--force"], "leave out --force"),
        (["mine", "--provider", "demo"], "gateway channels add demo"),
    ):
        refused = await operator.type("channels", "add", *words)
        assert (refused.exit_code, text in refused.stderr) == (2, True), refused.stderr


async def test_a_channel_called_like_a_provider_is_its_and_offers_what_it_lists(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(listing("a")) as up:
        made = await operator.ask("channels", "add", "ollama", "--base-url", up.base_url)
        assert (made["provider"], made["sync"], made["offers"]) == ("ollama", True, 1)
        filtered = await operator.ask("channels", "edit", "ollama", "--model", "b*", "--model", "c")
        assert (filtered["sync"], filtered["models"], filtered["offers"]) == (True, ["b*", "c"], 0)
        fixed = await operator.ask("channels", "edit", "ollama", "--no-sync")
        assert (fixed["sync"], fixed["models"]) == (False, ["b*", "c"])
    for words, text in (
        (["thing"], "Unknown provider 'thing'. Pass --provider: openai, anthropic"),
        (["opnai"], "Unknown provider 'opnai'; did you mean 'openai'?\n"),
        (["thing", "--provider", "opnai"], "provider: unknown name; did you mean 'openai'?\n"),
    ):
        refused = await operator.type("channels", "add", *words)
        assert (refused.exit_code > 0, text in refused.stderr) == (True, True), refused.stderr


async def test_models_that_are_named_stay_and_the_provider_is_asked_only_for_a_test(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(listing("a")) as up:
        made = await operator.add(up, "--model", "x,y*")
        assert (made["sync"], made["models"]) == (False, ["x", "y*"])
        assert [request.path for request in up.received] == ["/v1/models"]
        assert " 1+ " in await operator.see("channels")


async def test_no_key_and_no_header_is_ever_shown(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(listing("a")) as up:
        secret = "a=b,c hidden"
        words = ("--api-key", GOOD_KEY, "--api-key", OTHER_KEY, "--header", f"X-One={secret}", "--header", "X-Two=")
        made = await operator.add(up, *words, "--proxy", "http://me:hidden@127.0.0.1:9", "--model", "a", "--force")
        assert (made["key_count"], made["header_names"], made["has_proxy"]) == (2, ["X-One", "X-Two"], True)
        await operator.ask("channels", "edit", "lab", "--proxy", "none", "--sync")
        assert up.received[-1].headers["x-one"] == secret  # as it was given, also with a comma
        shown = await operator.see("channels", "show", "lab")
        assert "…abcd healthy" in shown
        assert "…wxyz healthy" in shown
        for command in (("channels",), ("channels", "show", "lab", "--json"), ("channels", "show", "lab")):
            seen = await operator.see(*command, width=1000)
            assert all(hidden not in seen for hidden in (GOOD_KEY, OTHER_KEY, "hidden"))


async def test_keys_are_read_from_standard_input_one_a_line(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(listing("a")) as up:
        made = await operator.add(up, "--api-key-stdin", stdin=f"{GOOD_KEY}\n{OTHER_KEY}\r\n\n")
        assert [key["last4"] for key in made["keys"]] == ["abcd", "wxyz"]
        changed = await operator.ask("channels", "edit", "lab", "--api-key-stdin", stdin=OTHER_KEY)
        assert [key["last4"] for key in changed["keys"]] == ["wxyz"]
        assert up.received[-1].headers["authorization"] == f"Bearer {OTHER_KEY}"
        assert (await operator.ask("channels", "edit", "lab", "--api-key", "none"))["key_count"] == 0
    empty = await operator.type("channels", "edit", "lab", "--api-key-stdin", stdin="\n")
    assert (empty.exit_code, "no key on standard input" in empty.stderr) == (2, True)
    both = await operator.type("channels", "edit", "lab", "--api-key-stdin", "--api-key", GOOD_KEY)
    assert (both.exit_code, GOOD_KEY in both.output) == (2, False)


@pytest.mark.slow
async def test_a_terminal_is_asked_for_the_key_that_a_provider_wants_and_does_not_show_it(
    gateway_with: StartGateway,
) -> None:
    operator = await sit_down(gateway_with)
    ours, theirs = pty.openpty()
    async with ScriptedUpstream(listing("a")) as up:
        words = ["channels", "add", "openai", "--base-url", up.base_url, "--data", str(operator.gateway.folder.path)]
        process = await asyncio.create_subprocess_exec(
            *GATEWAY,
            *words,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,  # its terminal is that of the test, and no other
        )
        os.close(theirs)
        async with asyncio.timeout(WAIT_LIMIT_S):
            prompt = b""
            assert process.stderr is not None
            while b": " not in prompt:
                prompt += await process.stderr.read(1)
            os.write(ours, GOOD_KEY.encode() + b"\n")
            out, errors = await process.communicate()
        os.close(ours)
        assert process.returncode == 0, errors
        assert "API key of openai" in prompt.decode()
        assert GOOD_KEY.encode() not in prompt + out + errors
        assert up.received[0].headers["authorization"] == f"Bearer {GOOD_KEY}"


async def test_every_key_is_tested_and_one_that_fails_exits_with_1(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    tests = [[REFUSED], listing("a", "b"), [REFUSED], listing("a", "b"), listing("a")]
    async with ScriptedUpstream(listing("a"), *tests) as up:
        await operator.add(up, "--model", "a", "--api-key", GOOD_KEY, "--api-key", OTHER_KEY)
        failed = await operator.type("channels", "test", "lab")
        assert failed.exit_code == 1
        rows = [line.split() for line in failed.stdout.splitlines()]
        assert rows[0] == ["CHANNEL", "KEY", "RESULT", "MODELS", "ERROR"]
        assert rows[1][:4] == ["lab", "…abcd", "failed", "-"]
        assert ["lab", "…wxyz", "ok", "2", "-"] in rows
        again = await operator.type("channels", "test", "--json")
        assert again.exit_code == 1
        assert [key["ok"] for key in json.loads(again.stdout)["data"][0]["keys"]] == [False, True]
        assert (await operator.ask("channels", "test", "lab"))["ok"] is True


async def test_a_real_request_is_sent_only_if_it_is_asked_for_and_its_time_is_shown(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    async with ScriptedUpstream(listing("a"), [answer(COMPLETION)], listing("a"), [REFUSED], listing("a")) as up:
        await operator.type("channels", "add", "lab", "--provider", "custom", "--base-url", up.base_url, "--request")
        assert [sent.path for sent in up.received] == ["/v1/models", "/v1/chat/completions"]
        failed = await operator.type("channels", "test", "lab", "--request")
        assert failed.exit_code == 1
        assert "(401 Unauthorized)" in " ".join(failed.stdout.split())
        assert "TIME" not in (await operator.see("channels", "test", "lab"))
    async with ScriptedUpstream(listing("a"), listing("a"), [answer(COMPLETION)]) as up:
        await operator.type(
            "channels", "add", "lab2", "--provider", "custom", "--base-url", up.base_url, "--model", "b"
        )
        shown = await operator.see("channels", "test", "lab2", "--request", "--model", "c")
        assert "TIME" in shown
        assert " ms" in shown
        assert json.loads(up.received[-1].body)["model"] == "c"
        assert json.loads(up.received[-1].body)["max_tokens"] == 1


async def test_what_is_disabled_is_tested_only_by_name(gateway_with: StartGateway) -> None:
    dead = channel("http://127.0.0.1:9/v1", "dead", status="disabled")
    async with ScriptedUpstream(listing("m")) as up:
        operator = await sit_down(gateway_with, {"channel": [dead, channel(up.base_url, "good")]})
        assert [result["name"] for result in (await operator.ask("channels", "test"))["data"]] == ["good"]
        assert (await operator.type("channels", "test", "dead")).exit_code == 1


async def test_a_sync_says_which_models_came_and_went(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)

    async def rows_of(*words: str) -> list[list[str]]:
        return [line.split() for line in (await operator.see(*words)).splitlines()]

    fewer = listing("b", "c", "d")
    async with ScriptedUpstream(listing("a", "b"), fewer, fewer, [FAILED]) as up:
        await operator.add(up, "--sync")
        came = [["CHANNEL", "RESULT", "MODELS", "ADDED"], ["lab", "ok", "4", "c,", "d"]]
        assert await rows_of("channels", "sync", "lab") == came
        went = [["CHANNEL", "RESULT", "MODELS", "REMOVED"], ["lab", "ok", "3", "a"]]
        assert await rows_of("channels", "sync") == went  # it was missing twice
        failed = await operator.type("channels", "sync")
        assert failed.exit_code == 1
        row = failed.stdout.splitlines()[1].split()
        assert row[:3] == ["lab", "failed", "3"]  # its models stay as they were
        shown = await operator.see("channels", "show", "lab")
        assert "added -; removed a" in shown
        assert "sync error        The provider failed" in shown
        await operator.ask("channels", "edit", "lab", "--no-sync", "--model", "a")
    refused = await operator.type("channels", "sync", "lab")
    assert (refused.exit_code, "does not synchronize" in refused.stderr) == (1, True)
    nothing = await operator.type("channels", "sync")
    assert (nothing.exit_code, nothing.stderr) == (0, "No channel synchronizes its models.\n")


async def test_what_the_file_declares_is_changed_there(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with, {"channel": [channel("http://127.0.0.1:9/v1", "filed")]})
    for words in (("edit", "filed", "--rpm", "1"), ("disable", "filed"), ("delete", "filed", "--yes")):
        refused = await operator.type("channels", *words)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "declared in the configuration file" in refused.stderr


async def test_an_edit_without_a_change_and_a_pair_without_a_sign_are_usage_errors(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    for words in (
        (),
        ("--header", "X-Secret"),
        ("--map", "=b"),
        ("--rpm", "many"),
        ("--header", "none", "--header", ""),
    ):
        refused = await operator.type("channels", "edit", "lab", *words)
        assert refused.exit_code == 2, words
        assert "X-Secret" not in refused.output


def test_pairs_are_tables_and_none_takes_all_of_them_back() -> None:
    seen: list[Any] = []

    @click.command()
    @channel_options
    def command(**options: Any) -> None:
        seen.append((options["model_map"], options["headers"]))

    for words in (["--map", "a=b", "--map", " c =d=e"], ["--map", "none", "--header", "none=1"], []):
        assert CliRunner().invoke(command, words).exit_code == 0
    assert seen == [({"a": "b", "c": "d=e"}, None), ("none", {"none": "1"}), (None, None)]


async def test_a_channel_that_is_down_is_seen_to_be(gateway_with: StartGateway) -> None:
    config = {
        "channel": [channel("http://127.0.0.1:9/v1", "dead"), channel("http://127.0.0.1:9/v1")],
        "routing": {"trip_failures": 1, "max_attempts": 2, "cooldown_s": 200},
    }
    operator = await sit_down(gateway_with, config)
    async with operator.gateway.post() as response:
        assert response.status == 502
    assert await operator.gateway.rows(1)
    table = await operator.see("channels")
    assert table.count("cooling down") == 2
    message = await operator.see("explain", "m")
    assert "cooling down after failures" in " ".join(message.split())
    assert "a few requests are sent" in " ".join(message.split())
    shown = await operator.see("channels", "show", "dead", width=120)
    assert "cooling down " in shown
    assert "(The provider could not be reached: connection refused)" in shown


async def test_explain_ranks_who_would_serve_a_call_and_what_the_caller_has_left(gateway_with: StartGateway) -> None:
    here = "http://127.0.0.1:9/v1"
    operator = await sit_down(
        gateway_with,
        {
            "channel": [
                channel(here, "light", price_multiplier=2),
                channel(here, "heavy", weight=3, model_map={"m": "theirs"}),
                channel(here, "last", priority=-1),
                channel(here, "closed", groups=["vip"]),
            ],
            "price": [{"model": "m", "input_usd_per_million": 0.5, "output_usd_per_million": 1.5}],
            "account": [{"name": "acme", "quota_usd": 5, "rpm": 60}],
        },
    )
    lines = [line.split() for line in (await operator.see("explain", "m", "--key", "1", width=100)).splitlines()]
    assert lines[0][:8] == ["m", "(chat),", "key", "1", "(test)", "of", "account", "'acme':"]
    assert lines[2] == ["CHANNEL", "RANK", "CHANCE", "STATE", "PRICE", "FORMAT", "REASON"]
    assert lines[3] == ["heavy", "1", "75", "%", "healthy", "$0.50/$1.50", "openai_chat", "as", "'theirs'"]
    assert lines[4] == ["light", "2", "25", "%", "healthy", "$1.00/$3.00", "openai_chat"]
    assert lines[5] == ["last", "3", "-", "healthy", "$0.50/$1.50", "openai_chat"]
    assert lines[6] == ["closed", *"----", "-", "allowed", "groups:", "vip"]
    assert lines[-2:] == [["key", "unlimited", "$0.00", "-"], ["account", "$5.00", "$0.00", "60", "rpm"]]
    found = await operator.ask("explain", "--model", "m", "--key", "1")
    assert (found["served"], found["room"]["account"]["left_usd"]) == (True, 5)
    assert "m (messages): " in await operator.see("explain", "m", "--operation", "messages")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nope"], 1, "does not offer the model"),
        (["m", "--operation", "dance"], 1, "'operation' must be one of chat"),
        (["m", "--key", "999"], 1, "No key has the id 999"),
        ([], 2, "Give the name of one model"),
        (["m", "--model", "m"], 2, "Give the name of one model"),
    ],
)
async def test_what_cannot_be_explained_or_served_is_no_success(
    gateway_with: StartGateway, words: list[str], code: int, message: str
) -> None:
    operator = await sit_down(gateway_with, {"channel": [channel("http://127.0.0.1:9/v1")]})
    result = await operator.type("explain", *words)
    assert result.exit_code == code
    assert message in result.output


async def test_a_call_that_its_key_may_not_make_says_why(gateway_with: StartGateway) -> None:
    key = {"name": "bound", "account": "acme", "models": ["other"], "secret": "sk-bound-to-another-model"}
    operator = await sit_down(gateway_with, {"channel": [channel("http://127.0.0.1:9/v1")], "key": [key]})
    refused = await operator.type("explain", "m", "--key", "1")
    assert refused.exit_code == 1
    assert "acme': no route. " in refused.stdout


async def test_requests_say_how_many_attempts_they_took_and_are_found_by_channel(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([FAILED]) as bad, ScriptedUpstream([answer(COMPLETION)]) as good:
        operator = await sit_down(gateway_with, channels([bad, good]))
        async with operator.gateway.post() as response:
            assert response.status == 200
        await operator.gateway.rows(1)
        assert " up1 (2nd) " in await operator.see("requests")
        (row,) = (await operator.ask("requests", "--channel", "up1"))["data"]
        assert row["tried"].startswith("up0=upstream_error:")
        assert (await operator.ask("requests", "--channel", "up0"))["data"] == []


def make_row(**values: Any) -> dict[str, Any]:
    """A request as the admin API lists it."""
    return {
        "started_ms": 0,
        "key_name": "k",
        "model": "m",
        "channel": "up",
        "attempts": 1,
        "usage_source": "upstream",
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "images": 0,
        "duration_ms": 0,
        "characters": 0,
        "cost_usd": 0.0,
        "overrun_nanos": 0,
        "first_byte_ms": None,
        "total_ms": 1,
        "status": 200,
        "error_code": None,
        "outcome": "completed",
        **values,
    }


def read_cell(title: str, row: dict[str, Any]) -> str:
    (column,) = (column for column in REQUESTS if column.title == title)
    return column.read(row)


@table_rows(("attempts", "cell"), [(0, "up"), (1, "up"), (2, "up (2nd)"), (3, "up (3rd)"), (4, "up (4th)")])
def test_only_the_last_word_of_several_attempts_is_marked(attempts: int, cell: str) -> None:
    assert read_cell("CHANNEL", make_row(attempts=attempts)) == cell


@table_rows(
    ("used", "cell"),
    [
        ({}, "1/1"),
        ({"images": 2}, "1/1 2img"),
        ({"duration_ms": 3_250, "usage_source": "estimate"}, "~1/1 3.2s"),
        ({"usage_source": "bound"}, "?1/1"),
        ({"characters": 900, "duration_ms": 60_000}, "1/1 900ch"),
        ({"prompt_tokens": 0, "completion_tokens": 0, "duration_ms": 4_000}, "4.0s"),
        ({"prompt_tokens": 0, "completion_tokens": 0, "images": 1, "usage_source": "estimate"}, "~1img"),
        ({"prompt_tokens": 0, "completion_tokens": 0}, "0/0"),
    ],
)
def test_images_seconds_and_characters_stand_beside_tokens_where_there_are_any(used: dict[str, Any], cell: str) -> None:
    assert read_cell("IN/OUT", make_row(**used)) == cell


@table_rows(
    ("standing", "text"),
    [
        ({}, "healthy"),
        ({"share": 0.4, "health": "recovering"}, "recovering 40 %"),
        ({"health_reason": "46 of the last 100 requests failed"}, "healthy, 54.3 % answered"),
        ({"circuits": [{"model": "m"}]}, "healthy, 1 model failing"),
        ({"circuits": [{"model": "m"}, {"model": "m"}, {"model": "n"}]}, "healthy, 2 models failing"),
        ({"state": "open", "cooldown_s": 9.0, "circuits": [{"model": "m"}]}, "cooling down 9 s"),
        ({"state": "open", "cooldown_s": 12.3}, "cooling down 12 s"),
        ({"state": "open", "cooldown_s": 0.0}, "recovering"),
        ({"state": "half_open", "cooldown_s": None}, "recovering"),
        (
            {"keys": [{"state": "closed"}, {"state": "open", "cooldown_s": 9.0}, {"state": "closed"}]},
            "healthy, 1/3 keys failing",
        ),
        ({"health": "failing", "keys": [{"state": "open", "cooldown_s": 27.4}]}, "failing, 1/1 key failing"),
        (
            {"health": "failing", "keys": [{"state": "open", "cooldown_s": 9}, {"state": "open", "cooldown_s": 3}]},
            "failing, 2/2 keys failing",
        ),
        ({"keys": [{"state": "half_open", "cooldown_s": None}]}, "healthy, 1/1 key failing"),
        (
            {"state": "open", "cooldown_s": 5.0, "keys": [{"state": "open", "cooldown_s": 3}]},
            "cooling down 5 s, 1/1 key failing",
        ),
        ({"state": "open", "cooldown_s": 3.0, "health": "disabled"}, "disabled"),
    ],
)
def test_a_channels_standing_is_a_few_words(standing: dict[str, Any], text: str) -> None:
    well = {
        "health": "healthy",
        "state": "closed",
        "cooldown_s": 0.0,
        "share": 1.0,
        "keys": [{"state": "closed", "cooldown_s": 0.0}],
        "circuits": [],
        "health_reason": None,
        "success_ratio": 0.5437,
    }
    assert format_health({**well, **standing}) == text


def test_a_price_is_what_the_caller_pays() -> None:
    price = {
        "input_usd_per_million": 0.25,
        "output_usd_per_million": 2.0,
        "usd_per_image": 0.0,
        "usd_per_second": 0.0,
        "usd_per_million_characters": 0.0,
        "tiers": 0,
    }
    nothing = {**price, "input_usd_per_million": 0.0, "output_usd_per_million": 0.0}
    for given_price, multiplier, text in (
        (None, 1, "-"),
        (price, 1, "$0.25/$2.00"),
        (price, 1.2, "$0.30/$2.40"),
        ({**price, "tiers": 2}, 1, "$0.25/$2.00+"),
        ({**nothing, "usd_per_image": 0.04}, 2, "$0.08 per image"),
        ({**nothing, "usd_per_second": 0.01}, 1, "$0.01 per second"),
        ({**nothing, "usd_per_million_characters": 15.0}, 1, "$15.00 per million characters"),
    ):
        assert format_price(given_price, multiplier) == text


@given(st.lists(st.text("abc", min_size=1), max_size=20))
def test_of_many_names_the_first_are_shown_and_the_rest_counted(names: list[str]) -> None:
    text = format_some(names)
    shown, _, more = text.partition(" and ")
    counted = int(more.split()[0]) if more else 0
    assert len(shown.split(", ")) + counted == max(len(names), 1)


def test_a_reload_is_told_line_by_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_reload({"changes": ["channel 'a' added", "prices changed"], "needs_restart": ["server.port"]})
    print_reload({"changes": [], "needs_restart": ["server.host"]})
    print_reload({"changes": [], "needs_restart": []})
    assert capsys.readouterr().out.splitlines() == [
        "channel 'a' added",
        "prices changed",
        "server.port changed: needs a restart",
        "server.host changed: needs a restart",
        "Nothing has changed.",
    ]


FILE = """
[server]
drain_timeout_s = {drain}
[[channel]]
name = "{name}"
provider = "custom"
base_url = "http://127.0.0.1:9/v1"
models = ["m"]
"""


def test_a_reload_takes_no_other_file_than_the_gateways() -> None:
    result = CliRunner().invoke(main, ["reload", "--config", "other.toml"])
    assert (result.exit_code, "--config" in result.stderr) == (2, True)


def test_who_adds_the_first_channel_is_told_which_found_ones_gave_way(capsys: pytest.CaptureFixture[str]) -> None:
    origins = {"openai": "environment", "ollama": "local", "demo": "demo", "old": "stored", "mine": "file"}
    before = [{"name": name, "origin": origin} for name, origin in origins.items()]
    print_replaced_channels(before, {"name": "openai"})
    print_replaced_channels(before[2:], {"name": "lab"})
    message, rest = capsys.readouterr().err.split(": ", 1)
    assert message == "Discovered channels are no longer used"
    assert rest == "ollama. Add those that you want to keep.\n"


@pytest.mark.slow
def test_a_reload_brings_in_the_file_whole_or_not_at_all(tmp_path: Path) -> None:
    with serving(tmp_path / "data", signal.SIGTERM) as server:  # without a file, and --port 0 is no change of the port
        assert server.invoke("reload").stdout == "Nothing has changed.\n"
        (tmp_path / "config").mkdir()
        file = tmp_path / "config" / "gateway.toml"
        file.write_text(FILE.format(drain=5, name="one"))
        assert server.invoke("reload").stdout.splitlines() == [
            "channel 'one' added",
            "server.drain_timeout_s changed: needs a restart",
        ]
        served = ["one", "demo"]  # nothing answers at the address of 'one'
        assert [channel["name"] for channel in server.ask("channels")["data"]] == served
        file.write_text(FILE.format(drain=-1, name="") + "wieght = 1\n")
        refused = server.invoke("reload")
        assert (refused.exit_code, refused.stdout) == (1, "")
        for problem in ("server.drain_timeout_s", "channel[0].name", "did you mean 'weight'?"):
            assert problem in refused.stderr
        assert [channel["name"] for channel in server.ask("channels")["data"]] == served


@pytest.mark.slow
def test_a_reload_that_loses_its_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    file = tmp_path / "config" / "gateway.toml"
    file.write_text(FILE.format(drain=5, name="one"))
    with serving(tmp_path / "data", signal.SIGTERM) as server:
        file.unlink()
        refused = server.invoke("reload")
        assert (refused.exit_code, "No such file" in refused.stderr) == (1, True)
        assert [channel["name"] for channel in server.ask("channels")["data"]] == ["one"]


@pytest.mark.slow
def test_without_a_gateway_channels_are_kept_in_the_folder_and_there_is_nothing_to_reload(
    data: Path, tmp_path: Path
) -> None:
    add = ["channels", "add", "lab", "--provider", "custom", "--base-url", "http://127.0.0.1:9/v1"]
    words = [
        [*add, "--model", "m", "--api-key", GOOD_KEY, "--force"],
        ["channels", "--json"],
        ["explain", "m"],
        ["explain", "other"],
        ["reload"],
        ["channels", "disable", "lab"],
        ["models"],
    ]
    (added, listed, served, unserved, nothing, disabled, models) = run_many(
        tmp_path, *([*command, "--data", str(data)] for command in words)
    )
    assert added[0] == disabled[0] == 0
    assert [channel["name"] for channel in json.loads(listed[1])["data"]] == ["lab", "demo"]
    assert (served[0], unserved[0], nothing[:2]) == (1, 1, [1, ""])
    assert "Nothing to reload: no gateway runs with the data folder" in nothing[2]
    assert models[0] == 0
    assert "demo-chat" in models[1]  # no other channel has ever answered
    assert GOOD_KEY not in added[1] + added[2] + listed[1]


@pytest.mark.slow
def test_a_master_key_that_is_not_the_folders_is_told(data: Path, tmp_path: Path) -> None:
    add = ["channels", "add", "lab", "--provider", "custom", "--base-url", "http://127.0.0.1:9/v1", "--model", "m"]
    run_many(tmp_path, [*add, "--api-key", GOOD_KEY, "--data", str(data)])
    (data / "master.key").write_bytes(b"x" * 32)
    listed, served = run_many(
        tmp_path, ["channels", "--data", str(data)], ["serve", "--port", "0", "--data", str(data)]
    )
    for code, out, errors in (listed, served):
        assert (code, out) == (2, "")
        assert f"{data / 'master.key'} is not what it knows" in errors
        assert "Traceback" not in errors
