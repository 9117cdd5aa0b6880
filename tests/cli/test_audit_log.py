"""The commands that show who changed what, and that give a key another secret."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli.audit_log import print_changes
from gateway.cli.main import main

STEERING = "acme/\x1b[31mred"


def row(**more: Any) -> dict[str, Any]:
    """A change as the admin API shows it."""
    reported = {
        "sequence": 7,
        "at": "2026-01-31T12:00:00Z",
        "actor_kind": "member",
        "actor": "ada",
        "address": "10.0.0.9",
        "action": "key.edited",
        "account": "acme",
        "subject": "acme/ci",
        "detail": {"rpm": [60, 120]},
    }
    return {**reported, **more}


def show(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *rows: Any, width: int = 160) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    print_changes(rows)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        ({"rpm": [60, 120]}, "rpm 60 → 120"),
        ({"rpm": [None, 60]}, "rpm 60"),
        ({"provider": ["", "openai"], "rpm": [0, 5]}, "provider openai; rpm 0 → 5"),
        ({"rpm": [60, None]}, "rpm 60 → none"),
        ({"quota_usd": [2.5, 20.0]}, "quota $2.50 → $20.00"),
        ({"models": [[], ["m", "n"]], "sync": [False, True]}, "models m, n; sync no → yes"),
        ({"api_keys": "changed", "rpm": [0, 5]}, "api keys changed; rpm 0 → 5"),
        ({"other": {"a": 1}, "some": [1, 2, 3]}, "other a=1; some 1, 2, 3"),
    ],
)
def test_a_change_is_told_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, detail: dict[str, Any], message: str
) -> None:
    assert show(capsys, monkeypatch, row(detail=detail)).splitlines()[1].endswith(f"acme/ci  {message}")


def test_the_newest_change_is_at_the_end_and_says_who_made_it_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(sequence=8, actor="", actor_kind="file", address="", subject=STEERING, detail={}), row()]
    head, first, second = show(capsys, monkeypatch, *rows).splitlines()
    assert head.split() == ["NO", "TIME", "BY", "FROM", "WHAT", "OF", "CHANGE"]
    assert [first.split()[at] for at in (0, 3, 4, 5)] == ["7", "ada", "10.0.0.9", "key.edited"]
    assert [second.split()[at] for at in (0, 3, 4)] == ["8", "file", "-"]
    assert "\x1b" not in second
    narrow = show(capsys, monkeypatch, *rows, width=58)
    assert "10.0.0.9" not in narrow
    assert "key.edited" in narrow


def ask(data: Path, *words: str) -> Any:
    result = CliRunner().invoke(main, [*words, "--data", str(data), "--json"], env={"GATEWAY_DISCOVER": "0"})
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_key_is_rotated_and_who_did_it_is_told(data: Path) -> None:
    rotated = ask(data, "keys", "rotate", "1", "--overlap-h", "0")
    assert (rotated["name"], rotated["former_until"], len(rotated["secret"])) == ("first", None, 51)
    listed = ask(data, "changes", "--action", "key", "--limit", "5")["data"]
    assert [(change["actor_kind"], change["action"], change["subject"]) for change in listed] == [
        ("token", "key.rotated", "local/first"),
        ("gateway", "key.created", "local/first"),
    ]
    assert rotated["secret"] not in str(listed)
    before = str(listed[0]["sequence"])
    assert ask(data, "changes", "--before", before, "--account", "local", "--actor", "token")["data"] == []
