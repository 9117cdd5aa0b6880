"""Every table of the command line at 80 columns, with long names: it fits, and no word is broken."""

from typing import Any

import pytest

from tests.support.cli_operator import Operator, log, sit_down
from tests.support.gateway import HELLO, channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""

LONG = "a-very-long-name-of-a-department-in-a-large-company"
MODEL = "some-vendor/an-extraordinarily-long-model-name-with-a-date-2027-01-31"
COMMANDS = (
    ("accounts",),
    ("keys",),
    ("members",),
    ("channels",),
    ("channels", "test"),
    ("channels", "sync"),
    ("models",),
    ("requests",),
    ("running",),
    ("videos",),
    ("batches",),
    ("files",),
    ("usage",),
    ("usage", "--by", "model"),
    ("usage", "--by", "key"),
    ("usage", "--by", "account"),
    ("audit-log",),
    ("settings",),
    ("groups",),
    ("prices",),
    ("prices", "--model", "gpt-5-mini"),
    ("explain", MODEL),
    ("accounts", "credits", LONG),
)
REPORTED_FAILURES = {"channels", "requests", "usage", "explain"}
"""The commands that show requests, or what became of them."""


async def furnish(operator: Operator) -> None:
    await operator.ask("accounts", "add", LONG, "--quota-usd", "1234567.25", "--rpm", "600", "--tpm", "1000000")
    words = ["--account", LONG, "--name", LONG, "--models", f"{MODEL},other-*", "--expires-at", "2999-01-31"]
    await operator.ask("keys", "create", *words)
    await operator.ask("accounts", "top-up", LONG, "3", "--reference", LONG, "--note", "a note of many words " * 4)
    await operator.ask("members", "invite", LONG)
    await operator.ask("groups", "set", LONG, "0.8")
    await operator.ask("prices", "set", f"{MODEL}-*", "--provider", "openrouter", "--input", "0.123456789")


def split_words(text: str) -> list[str]:
    return text.replace(" …", "…").split()


@pytest.mark.parametrize("refused", [False, True], ids=["served", "failed"])
async def test_no_table_breaks_a_word_at_80_columns(gateway_with: StartGateway, *, refused: bool) -> None:
    failure = {"error": {"message": "An unusually-long-word-in-the-error-of-a-provider " * 4, "type": "server_error"}}
    script = [answer(failure, 500)] if refused else [answer(COMPLETION)]
    async with ScriptedUpstream(script) as up:
        config: dict[str, Any] = {"channel": [channel(up.base_url, LONG, models=[MODEL])]}
        operator = await sit_down(gateway_with, config)
        await furnish(operator)
        async with operator.gateway.post({**HELLO, "model": MODEL}) as response:
            assert (response.status == 200) is not refused
        await operator.gateway.rows(1)
        for words in COMMANDS:
            if refused and words[0] not in REPORTED_FAILURES:
                continue
            wide = (await operator.type(*words, width=2_000)).stdout
            narrow = await operator.type(*words, width=80)
            table = narrow.stdout.rpartition("\n\n")[2]  # after a sentence, which the terminal wraps
            assert max(map(len, table.splitlines()), default=0) <= 80, words
            whole = set(wide.split())
            broken = [
                word
                for word in split_words(table)
                if word not in whole
                and not set(word) <= set("▏▎▍▌▋▊▉█#")
                and not (word.endswith("…") and any(other.startswith(word[:-1]) for other in whole))
            ]
            assert not broken, (words, broken)
