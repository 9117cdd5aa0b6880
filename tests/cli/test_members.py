"""The commands about members as an operator sees them, and what a start says of the console."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli.main import main
from gateway.cli.startup_message import print_startup_message
from gateway.domain.passkey import Passkey
from gateway.options import StartupInfo
from gateway.server.context import SERVICES
from gateway.storage.passkeys import PasskeyRepository
from tests.support.cli_operator import log, sit_down
from tests.support.console import add_member, open_session
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""


async def test_a_member_is_invited_listed_changed_and_deleted(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    gateway = operator.gateway
    assert (await operator.type("members")).stderr.startswith("No members.")
    link = (await operator.see("members", "invite", "acme", "--role", "viewer")).strip()
    address, _, token = link.partition("#")
    assert address == f"{gateway.url}/console/join"
    opened = await gateway.app[SERVICES].auth.invitations.open_link(token)
    assert (opened.account.name, opened.link.role) == ("acme", "viewer")
    message = (await operator.type("members", "invite", "acme", "--hours", "1")).stderr
    assert message.startswith("Invitation for account 'acme' as member, valid once until 2")
    ann = await add_member(gateway, "ann@example.org")
    reference = await open_session(gateway, ann)
    table = await operator.see("members")
    assert table.splitlines()[0].split() == ["ID", "NAME", "ACCOUNT", "ROLE", "STATUS", "2ND", "FACTOR", "SIGNED", "IN"]
    assert table.splitlines()[1].split()[:6] == ["1", "ann@example.org", "acme", "member", "active", "no"]
    assert await operator.see("members", "disable", "Ann@example.org") == "The member Ann@example.org is disabled.\n"
    assert await gateway.app[SERVICES].auth.sessions.find(reference) is None
    await operator.see("members", "enable", "ann@example.org")
    assert "administrator" in await operator.see("members", "edit", "ann@example.org", "--role", "administrator")
    for words in (("disable",), ("delete", "--yes"), ("edit", "--role", "viewer")):
        refused = await operator.type("members", words[0], "ann@example.org", *words[1:])
        assert (refused.exit_code, "only administrator" in refused.stderr) == (1, True)
    await add_member(gateway, "bob")
    assert await operator.see("members", "delete", "bob", "--yes") == "The member bob is deleted.\n"
    assert [one["name"] for one in (await operator.ask("members"))["data"]] == ["ann@example.org"]


async def test_a_passphrase_is_reset_by_a_link(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    await add_member(operator.gateway, "ann")
    made = await operator.ask("members", "reset", "ann")
    assert (made["kind"], made["name"]) == ("reset", "ann")
    assert made["url"].endswith(f"#{made['token']}")
    result = await operator.type("members", "reset", "ann")
    assert result.stderr.startswith("Passphrase reset for ann, valid once until 2")
    for words in (("reset", "bob"), ("disable", "bob"), ("edit", "bob", "--no-second-factor")):
        missing = await operator.type("members", *words)
        assert (missing.exit_code, missing.stderr) == (1, "No member is called 'bob'; see: gateway members\n")
    assert (await operator.type("members", "edit", "ann")).exit_code == 2


@pytest.mark.parametrize(
    ("server", "address"),
    [("", "http://127.0.0.1:8080"), ('[server]\nbase_url = "https://gw.example.org/"\n', "https://gw.example.org")],
)
def test_where_no_gateway_runs_a_link_leads_to_where_the_next_will(
    data: Path, tmp_path: Path, server: str, address: str
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(server)
    words = ["members", "invite", "local", "--config", str(config), "--data", str(data)]
    made = CliRunner().invoke(main, words, env={"GATEWAY_DISCOVER": "0"})
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith(f"{address}/console/join#")


def read_greeting(capsys: Any, welcome: StartupInfo) -> list[str]:
    print_startup_message("http://127.0.0.1:8080", welcome)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_a_start_says_where_the_console_is_and_how_its_first_administrator_gets_in(capsys: Any) -> None:
    lines = read_greeting(capsys, StartupInfo("sk-first", ("demo-chat",), demo=True, setup_token="t0ken"))
    where = lines.index("console   http://127.0.0.1:8080/console/setup#t0ken")
    assert lines[where + 1] == "open this one-time link to create the admin account"
    lines = read_greeting(capsys, StartupInfo())
    assert "console   http://127.0.0.1:8080/console" in lines
    assert not any("setup" in line for line in lines)


async def test_a_member_is_shown_with_its_passkeys_which_an_operator_removes(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    ann = await add_member(operator.gateway, "ann")
    repository = PasskeyRepository(operator.gateway.app[SERVICES].storage.database)
    await repository.add_passkey(Passkey(0, ann.id, b"id", b"key", 0, "my laptop"), None)
    shown = (await operator.see("members", "show", "ann")).splitlines()
    assert shown[0] == "ann"
    assert ["second", "factor", "passkey"] in [line.split() for line in shown]
    assert any("my laptop" in line for line in shown)
    assert (await operator.ask("members", "show", "ann"))["passkey_list"][0]["name"] == "my laptop"
    assert "passkeys" in await operator.see("members", "edit", "ann", "--no-passkeys")
    assert "my laptop" not in await operator.see("members", "show", "ann")
