"""The commands about settings, groups and prices, as an operator sees them."""

from typing import Any

import pytest

from gateway.cli.settings import parse_value
from tests.support.cli_operator import Operator, log, sit_down
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

__all__ = ["log"]
"""A fixture of every test here, too."""

CONFIG = {
    "channel": [channel("http://127.0.0.1:9/v1", groups=["vip"])],
    "group": [{"name": "filed", "price_multiplier": 2}],
    "price": [{"model": "m", "input_usd_per_million": 1.5}],
}


@pytest.fixture
async def operator(gateway_with: StartGateway) -> Operator:
    return await sit_down(gateway_with, CONFIG)


async def test_settings_are_seen_set_and_taken_back(operator: Operator) -> None:
    seen = await operator.see("settings", "list", "routing", width=100)
    assert seen.splitlines()[0].split() == ["SETTING", "VALUE", "FROM", "ABOUT"]
    assert "routing.max_attempts 3 default maximum number of channels to try" in " ".join(seen.split())
    reported = await operator.ask("settings", "set", "routing.retry_ratio", "0.5")
    assert (reported["value"], reported["source"]) == (0.5, "console")
    assert await operator.see("settings", "set", "videos.webhook_hosts", "a.example.com, *.example.org") == (
        "videos.webhook_hosts: value none → a.example.com, *.example.org\n"
    )
    sections = (await operator.ask("settings"))["sections"]
    assert sections["videos"]["webhook_hosts"]["value"] == ["a.example.com", "*.example.org"]
    assert (await operator.ask("settings", "reset", "routing.retry_ratio"))["source"] == "default"
    assert (await operator.ask("settings", "set", "videos.webhook_hosts", "none"))["value"] == []


REFUSED = (
    (("settings", "set", "routing.max_attempts", "many"), 1, "expected a whole number"),
    (("settings", "set", "routing.max_attempts", "-1"), 1, "expected a number from 1 to 10"),
    (("settings", "set", "routing.trip_failures", "5"), 1, "routing.trip_failures is set in the configuration file"),
    (("settings", "set", "routing.colour", "blue"), 1, "no setting 'routing.colour'"),
    (("settings", "set", "routing", "5"), 2, "expected a section and a key"),
    (
        ("settings", "list", "colours"),
        1,
        "Unknown section 'colours'; expected one of server, cluster, rate_limits, ledger",
    ),
    (("groups", "set", "filed", "3"), 1, "The configuration file declares the group 'filed'"),
    (("groups", "reset", "vip"), 1, "The group 'vip' is not set"),
    (("prices", "set", "m", "--input", "3"), 1, "has a price for 'm', which takes precedence"),
    (("prices", "set", "gpt-5-mini"), 2, "expected a rate such as --input 0.25, or --free"),
    (("prices", "set", "gpt-5-mini", "--provider", "openai"), 2, "expected a rate such as --input 0.25, or --free"),
    (("prices", "set", "gpt-5-mini", "--input", "1", "--free"), 2, "expected a rate such as --input 0.25, or --free"),
    (("prices", "reset", "x", "--provider", "openai"), 1, "A price for x at openai is not set"),
)


async def test_what_cannot_be_done_is_told(operator: Operator) -> None:
    for words, code, message in REFUSED:
        result = await operator.type(*words)
        assert result.exit_code == code, words
        assert message in result.stderr


async def test_groups_are_seen_set_and_taken_back(operator: Operator) -> None:
    assert await operator.see("groups", "set", "vip", "0.9") == "vip: price multiplier 1 → 0.9\n"
    assert await operator.see("groups", "set", "vip", "0.8") == "vip: price multiplier 0.9 → 0.8\n"
    assert [line.split() for line in (await operator.see("groups")).splitlines()] == [
        ["GROUP", "MULTIPLIER", "FROM", "KEYS", "CHANNELS"],
        ["filed", "2", "file", "0", "0"],
        ["vip", "0.8", "console", "0", "1"],
    ]
    assert (await operator.ask("groups", "reset", "vip")) == {"name": "vip", "deleted": True}
    await operator.see("groups", "set", "new", "2")
    assert await operator.see("groups", "reset", "new") == "new: price multiplier 2 → 1\n"
    await operator.see("settings", "set", "routing.retry_ratio", "0.5")
    assert "routing.retry_ratio: value 0.5 → " in await operator.see("settings", "reset", "routing.retry_ratio")


async def test_prices_are_seen_set_and_taken_back(operator: Operator) -> None:
    made = await operator.see("prices", "set", "my/painter-*", "--provider", "openrouter", "--image", "0.04")
    assert made == "my/painter-* at openrouter: image none → $0.04\n"
    again = ("prices", "set", "my/painter-*", "--provider", "openrouter", "--image", "0.05", "--input", "1")
    assert await operator.see(*again) == "my/painter-* at openrouter: input none → $1.00, image $0.04 → $0.05\n"
    assert await operator.see(*again) == "my/painter-* at openrouter: nothing changed\n"
    await operator.see("prices", "set", "my/painter-*", "--provider", "openrouter", "--image", "0.04")
    assert [line.split() for line in (await operator.see("prices")).splitlines()] == [
        ["MODEL", "PROVIDER", "INPUT", "IMAGE", "FROM"],
        ["m", "-", "$1.50", "-", "file"],
        ["my/painter-*", "openrouter", "$1.00", "$0.04", "console"],
    ]
    assert "shipped" in await operator.see("prices", "--model", "gpt-4o")
    assert len((await operator.ask("prices", "--all"))["data"]) > 100
    gone = await operator.ask("prices", "reset", "my/painter-*", "--provider", "openrouter")
    assert gone == {"model": "my/painter-*", "provider": "openrouter", "deleted": True}


@table_rows(
    ("text", "kind", "value"),
    [
        ("3", "integer", 3),
        ("0.5", "number", 0.5),
        ("true", "boolean", True),
        ("yes", "boolean", "yes"),
        ("3", "text", "3"),
        ("keep", "choice", "keep"),
        ("a, b", "list", ["a", "b"]),
        ("none", "list", []),
        ("3", None, "3"),
    ],
)
def test_a_value_is_read_as_its_setting_is(text: str, kind: str | None, value: Any) -> None:
    assert parse_value(text, kind) == value


async def test_a_price_says_what_it_was_and_keeps_the_rates_that_are_not_named(operator: Operator) -> None:
    assert (await operator.see("prices", "set", "gpt-5-mini", "--free")).strip() == "gpt-5-mini: $0.25/$2.00 → free"
    assert (await operator.see("prices", "reset", "gpt-5-mini")).strip() == "gpt-5-mini: free → $0.25/$2.00"
    set_ = await operator.ask("prices", "set", "gpt-5-mini", "--input", "0.5")
    assert (set_["input_usd_per_million"], set_["output_usd_per_million"], set_["free"]) == (0.5, 2, False)
    assert set_["cached_input_usd_per_million"] == 0.025
