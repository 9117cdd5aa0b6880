"""How the command shows nodes, in a terminal of 80 columns."""

from typing import Any

import pytest

from gateway.cli.nodes import _print_lost_changes, _print_nodes

NODE: dict[str, Any] = {
    "id": "0123456789abcdef",
    "state": "live",
    "own": False,
    "leads": False,
    "epoch": 1,
    "beat_age_ms": 400,
    "url": "http://127.0.0.1:8081",
    "version": "0.9.0",
    "schema": "0022",
    "config_digest": "a3d23c5761cefc84",
    "config_differs": False,
    "started_at": "2026-11-28T02:08:46Z",
    "clock_offset_ms": -1,
    "waiting_rows": 0,
    "active_requests": 0,
    "outstanding_usd": 0.0,
    "outstanding_nanos": 0,
}


def test_another_configuration_is_seen_however_narrow_the_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    _print_nodes([NODE | {"own": True, "leads": True}, NODE | {"config_differs": True}])
    _, first, second = capsys.readouterr().out.splitlines()
    assert "live (this one, leader) " in first
    assert "live (configuration differs) " in second


def test_a_lost_change_is_shown_with_what_was_applied_again_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    change = {
        "found_at": "2026-11-28T02:09:46Z",
        "at": "2026-11-28T02:08:46Z",
        "actor_kind": "token",
        "actor": "",
        "action": "key.edited",
        "subject": "acme/k",
        "detail": {"rpm": [60, 6], "name": ["k", "l"]},
        "applied": {"rpm": [60, 6]},
        "reason": "its other fields take no right away",
    }
    _print_lost_changes([change])
    _, shown = capsys.readouterr().out.splitlines()
    for text in ("token", "key.edited", "acme/k", "rpm 60 → 6; name k → l", "its other fields take no right away"):
        assert text in shown
    assert shown.count("rpm 60 → 6") == 2
