"""The rooms beside the command: whom it asks, what it sends, and what it prints."""

import asyncio
import json
import shlex
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import click
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import admin_client
from gateway.cli.context import CliContext, CliError, StartupError
from gateway.cli.new_key import create_key
from gateway.cli.resource_options import build_changes, build_fields, build_new_fields
from gateway.cli.startup_message import choose_model, print_startup_message
from gateway.cli.text import clean, format_moment, format_usd
from gateway.options import StartupInfo
from gateway.storage.data_folder import DataFolder
from tests.support.gateway import RunningGateway
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows


def place_of(gateway: RunningGateway, **more: Any) -> CliContext:
    """Where the command finds ``gateway``, which says where it answers as ``serve`` would."""
    gateway.folder.announce(gateway.url)
    return CliContext(gateway.folder.path, None, {}, **more)


@pytest.fixture
def held(tmp_path: Path) -> Any:
    """A data folder that another process seems to have."""
    folder = DataFolder(tmp_path / "held")
    folder.admin_token()
    yield folder
    folder.close()


async def test_the_admin_api_of_the_gateway_that_runs_is_asked(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    async with admin_client.open_admin(place_of(gateway)) as admin:
        assert (admin.url, admin.offline) == (gateway.url, False)
        assert [account["name"] for account in (await admin.get("accounts"))["data"]] == ["acme"]


async def test_a_name_with_any_sign_reaches_its_account(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    async with admin_client.open_admin(place_of(gateway)) as admin:
        for name in ("a/b", "a b", "a@b.c", "a..b"):
            await admin.call("POST", "accounts", body={"name": name})
            assert (await admin.get("accounts", name))["name"] == name
        for name in ("..", "a%2Fb", "a?b", "a#b", "é", "-"):
            with pytest.raises(CliError, match="No account is called"):
                await admin.get("accounts", name)


async def test_a_query_value_is_sent_as_it_is_and_none_is_left_out(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    async with admin_client.open_admin(place_of(gateway)) as admin:
        answer = await admin.get("requests", query={"model": "a&status=x", "status": None})
        assert answer["data"] == []
        with pytest.raises(CliError, match=r"'status' must be a number, 'error' or 'ok'"):
            await admin.get("requests", query={"status": "x"})


async def test_a_new_key_gets_a_name_that_is_free_in_its_account(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"account": [{"name": "acme"}, {"name": "other"}], "key": []})
    async with admin_client.open_admin(place_of(gateway)) as admin:
        await create_key(admin, "acme", {"name": "key-2"})
        names = [(await create_key(admin, "acme", {}))["name"] for _ in range(2)]  # one key there: the next is key-2
        assert names == ["key-3", "key-4"]
        assert (await create_key(admin, "other", {}))["name"] == "key-1"
        with pytest.raises(CliError, match="--account: acme, other"):
            await create_key(admin, None, {})


async def test_without_an_account_making_a_key_says_how_to_add_one(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({"account": [], "key": []})
    async with admin_client.open_admin(place_of(gateway)) as admin:
        await admin.call("DELETE", "accounts", "local", query={"confirm": "local"})
        with pytest.raises(CliError, match="gateway accounts add NAME"):
            await create_key(admin, None, {})


async def test_a_wrong_token_is_refused_with_the_gateways_own_words(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    place = place_of(gateway)
    (place.data / "admin.token").write_text("another")
    async with admin_client.open_admin(place) as admin:
        with pytest.raises(CliError, match="needs the token in the data folder"):
            await admin.get("accounts")


async def test_a_gateway_that_is_still_starting_is_waited_for(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    place = CliContext(gateway.folder.path, None, {}, busy_wait_s=3)
    asyncio.get_running_loop().call_later(0.1, gateway.folder.announce, gateway.url)
    async with admin_client.open_admin(place) as admin:
        assert (await admin.get("status"))["channels"] == 1


async def test_a_folder_held_without_an_address_is_given_up_with_its_holder_named(held: DataFolder) -> None:
    with pytest.raises(CliError, match=r"in use by process \d+, which announces no address") as refused:
        async with admin_client.open_admin(CliContext(held.path, None, {}, busy_wait_s=0.1)):
            pass
    assert refused.value.exit_code == 1


async def test_an_address_where_nothing_answers_is_told(held: DataFolder) -> None:
    held.announce("http://127.0.0.1:9")
    async with admin_client.open_admin(CliContext(held.path, None, {})) as admin:
        with pytest.raises(CliError, match=r"http://127\.0\.0\.1:9 does not answer"):
            await admin.get("accounts")


async def test_a_missing_token_is_told(held: DataFolder) -> None:
    held.announce("http://127.0.0.1:9")
    (held.path / "admin.token").unlink()
    with pytest.raises(CliError, match=r"admin\.token cannot be read"):
        async with admin_client.open_admin(CliContext(held.path, None, {})):
            pass


@pytest.mark.parametrize("body", [b"<html>", b"[]", b""])
async def test_something_else_at_the_address_is_told(held: DataFolder, body: bytes) -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=body)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        held.announce(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with admin_client.open_admin(CliContext(held.path, None, {})) as admin:
            with pytest.raises(CliError, match="not this gateway's admin API"):
                await admin.get("accounts")
    finally:
        await runner.cleanup()


async def test_a_gateway_that_hangs_is_given_up_after_the_time_allowed(held: DataFolder) -> None:
    async def hang(_: web.BaseRequest) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    runner = web.ServerRunner(web.Server(hang, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        held.announce(f"http://127.0.0.1:{runner.addresses[0][1]}")
        async with admin_client.open_admin(CliContext(held.path, None, {})) as admin:
            with pytest.raises(CliError, match="does not answer"):
                await admin.call("GET", "accounts", timeout_s=0.05)
    finally:
        await runner.cleanup()


async def test_every_channel_is_tested_and_a_failure_does_not_hide_the_others(gateway_with: StartGateway) -> None:
    gateway = await gateway_with(
        {
            "channel": [
                {"name": name, "provider": "custom", "base_url": "http://127.0.0.1:9/v1", "models": ["m"]}
                for name in ("one", "two/x")
            ]
        }
    )
    async with admin_client.open_admin(place_of(gateway)) as admin:
        results = await admin.test_channels()
        assert [(result["name"], result["ok"]) for result in results] == [("one", False), ("two/x", False)]
        assert await admin.test_channels("one") == results[:1]


def test_only_a_channel_that_asks_for_its_models_and_has_heard_nothing_is_waited_for() -> None:
    fresh: dict[str, Any] = {"sync": True, "status": "active", "offers": None, "sync_error": None}
    assert admin_client.awaits_models(fresh)
    for more in ({"sync": False}, {"status": "disabled"}, {"offers": 0}, {"sync_error": "no"}):
        assert not admin_client.awaits_models({**fresh, **more})


async def test_a_folder_that_cannot_be_read_is_the_operators_to_set_right(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(StartupError, match=r"file cannot be read: Not a directory") as refused:
        admin_client.find_running_process(path)
    assert refused.value.exit_code == 2


def test_a_probe_of_a_running_gateway_asks_it(held: DataFolder) -> None:
    held.announce("http://127.0.0.1:9")

    async def work(admin: admin_client.AdminClient) -> bool:
        return admin.offline

    assert admin_client.run_without_trace(CliContext(held.path, None, {}), work) is False


def test_fields_are_what_was_given_and_none_takes_a_setting_back() -> None:
    options = {
        "name": None,
        "quota_usd": 5.0,
        "quota_period": "none",
        "quota_status": "429",
        "rpm": "none",
        "models": ("a*, b", "c"),
        "allow_ips": ("none",),
        "groups": (),
    }
    given = {"quota_usd": 5.0, "quota_period": "none", "quota_status": 429, "models": ["a*", "b", "c"]}
    assert build_fields(options) == {**given, "rpm": None, "allow_ips": None}
    assert build_changes(options) == build_fields(options)
    assert build_new_fields(options) == given
    assert build_fields({"quota_status": "none"}) == {"quota_status": None}


def test_a_change_of_nothing_is_refused() -> None:
    with pytest.raises(click.UsageError, match="Nothing to change"):
        build_changes({"name": None, "models": ()})


@given(st.lists(st.text(st.characters(exclude_characters=",", exclude_categories=["C", "Z"]), min_size=1), min_size=1))
def test_a_list_means_the_same_repeated_and_with_commas(items: list[str]) -> None:
    assert build_fields({"models": tuple(items)}) == build_fields({"models": (",".join(items),)})


@table_rows(
    ("models", "picked"),
    [
        ((), None),
        (("demo-chat", "z"), "z"),
        (("demo-chat", "text-embedding-3"), "demo-chat"),
        (("text-embedding-3", "gpt-9"), "gpt-9"),
        (("text-embedding-3",), None),
    ],
)
def test_the_greeting_calls_a_model_that_can_chat(models: tuple[str, ...], picked: str | None) -> None:
    assert choose_model(models) == picked


def test_the_greetings_call_can_be_copied_whatever_the_model_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    print_startup_message("http://[::1]:8080", StartupInfo(secret="sk-abc", models=("it's $HOME",)))
    printed = capsys.readouterr().out
    words = shlex.split(printed[printed.index("curl") :].partition("\n\n")[0])
    assert json.loads(words[-1])["model"] == "it's $HOME"
    assert "models    1;" in printed


def test_a_greeting_before_any_provider_has_answered_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_startup_message("http://127.0.0.1:8080", StartupInfo(secret="sk-abc"))
    printed = capsys.readouterr().out
    assert "not loaded yet" in printed
    assert shlex.split(printed[printed.index("curl") :].partition("\n\n")[0]) == [
        "curl",
        "http://127.0.0.1:8080/v1/models",
        "-H",
        "Authorization: Bearer $GATEWAY_KEY",
    ]
    assert "  export GATEWAY_KEY=sk-abc\n" in printed


@table_rows(
    ("amount", "text"),
    [
        (None, "-"),
        (0.0, "$0.00"),
        (0.1, "$0.10"),
        (5.0, "$5.00"),
        (0.0000216, "$0.0000216"),
        (1234.56789, "$1,234.5679"),
    ],
)
def test_money_is_shown_with_the_decimals_it_has(amount: float | None, text: str) -> None:
    assert format_usd(amount) == text


@given(st.integers(0, 10**18))
def test_no_cost_below_a_dollar_is_rounded_away(nanos: int) -> None:
    text = format_usd(nanos / 1e9)
    assert text.startswith("$")
    shown = float(text[1:].replace(",", ""))
    assert shown == pytest.approx(nanos / 1e9, abs=1e-10 if nanos < 10**9 else 1e-4)


@given(st.text())
def test_nothing_shown_can_steer_a_terminal(text: str) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert len(shown) == len(text)
    assert shown == text or not text.isprintable()


def test_todays_requests_show_the_second_and_older_ones_the_day() -> None:
    now = datetime(2026, 5, 2, 0, 30, tzinfo=UTC)
    zone = timezone(timedelta(hours=2))
    assert format_moment(int(now.timestamp() * 1000) - 5_000, now, zone) == "02:29:55"
    assert format_moment(int(now.timestamp() * 1000) - 3 * 3_600_000, now, zone) == "05-01 23:30"
