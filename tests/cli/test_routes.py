"""The commands about routes, as an operator sees them."""

from pathlib import Path
from typing import Any

import click
import pytest

from gateway.cli.output_explain import print_explanation
from gateway.cli.step_text import format_step, parse_step
from tests.support.cli_operator import Operator, log, sit_down
from tests.support.gateway import channel
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows

__all__ = ["log"]
"""A fixture of every test here, too."""

CONFIG: dict[str, Any] = {
    "channel": [channel("http://127.0.0.1:9/v1", "lab", models=["m", "n"])],
    "price": [{"model": "m", "input_usd_per_million": 1.5, "output_usd_per_million": 3}],
    "route": [{"name": "filed", "about": "of the file", "step": [{"models": ["m"]}]}],
}


@table_rows(
    ("text", "step"),
    [
        ("gpt-5-mini", {"models": ["gpt-5-mini"]}),
        ("a*9 org/b:free", {"models": [{"model": "a", "weight": 9}, "org/b:free"]}),
        (
            "a channels=azure-*,lab on=unavailable,budget max_prompt_tokens=30000 images=no",
            {
                "models": ["a"],
                "channels": ["azure-*", "lab"],
                "on": ["unavailable", "budget"],
                "if": {"max_prompt_tokens": 30000, "images": False},
            },
        ),
        ("a b balance=cost", {"models": ["a", "b"], "balance": "cost"}),
        ("a wait_s=20", {"models": ["a"], "wait_s": 20.0}),
        ("a on=queue wait_s=0.5", {"models": ["a"], "on": ["queue"], "wait_s": 0.5}),
        (
            "a shadow=new,newer shadow_share=0.05 shadow_max_running=2",
            {"models": ["a"], "shadow": {"models": ["new", "newer"], "share": 0.05, "max_running": 2}},
        ),
    ],
)
def test_a_step_is_written_as_it_is_read(text: str, step: dict[str, Any]) -> None:
    assert parse_step(text) == step
    assert format_step(step) == text


@table_rows(
    ("text", "message"),
    [
        ("a chanels=x", "unknown condition 'chanels'; did you mean 'channels'?"),
        ("a max_prompt_tokens=many", "max_prompt_tokens: expected a whole number, not 'many'"),
        ("a shadow_share=some", "shadow_share: expected a number, not 'some'"),
        ("a wait_s=long", "wait_s: expected a number, not 'long'"),
        ("a images=2", "images: expected yes or no, not '2'"),
    ],
)
def test_a_step_that_cannot_be_read_says_why(text: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        parse_step(text)
    assert message in caught.value.message


@pytest.fixture
async def operator(gateway_with: StartGateway) -> Operator:
    return await sit_down(gateway_with, CONFIG)


async def test_routes_are_added_shown_changed_explained_and_deleted(operator: Operator, tmp_path: Path) -> None:
    made = await operator.see("routes", "add", "fast", "--step", "m*2 n", "--step", "n on=budget", "--about", "quick")
    assert "m*2 n → n on=budget" in " ".join(made.split())
    shown = await operator.see("routes", "show", "fast", width=100)
    assert "step 2  n on=budget" in shown
    assert "$1.50/$3.00" in shown
    assert await operator.see("routes", "edit", "fast", "--max-attempts", "5") == "fast: max attempts none → 5\n"
    assert await operator.see("routes", "edit", "fast", "--step", "n") == ("fast: step m*2 n, n on=budget → n\n")
    kept = (await operator.ask("routes", "show", "fast"))["max_attempts"]
    assert kept == 5
    file = tmp_path / "routes.toml"
    file.write_text('[[route]]\nname = "other"\n[[route]]\nname = "fast"\n[[route.step]]\nmodels = ["m"]\n')
    await operator.see("routes", "edit", "fast", "--from", str(file), "--max-attempts", "none")
    explained = await operator.see("explain", "fast", "--prompt-tokens", "100", width=120)
    lines = [line.split() for line in explained.splitlines() if line]
    assert lines[1][:4] == ["STEP", "MODELS", "VERDICT", "RESERVED"]
    assert lines[2][:3] == ["1", "m", "first"]
    assert lines[4][:7] == ["1", "m", "lab", "1", "100", "%", "closed"] or lines[4][:3] == ["1", "m", "lab"]
    listed = [line.split()[0] for line in (await operator.see("routes")).splitlines()]
    assert listed == ["ROUTE", "fast", "filed"]
    assert await operator.see("routes", "delete", "fast", "--yes") == "The route fast is deleted.\n"
    assert [route["name"] for route in (await operator.ask("routes"))["data"]] == ["filed"]


REFUSED = (
    (("routes", "add", "filed", "--step", "m"), 1, "There is a route 'filed' already"),
    (("routes", "edit", "filed", "--step", "m"), 1, "The configuration file declares the route 'filed'"),
    (("routes", "edit", "none", "--step", "m"), 1, "There is no route 'none'"),
    (("routes", "add", "fast"), 2, "Give a step, such as --step gpt-5-mini"),
    (("routes", "add", "fast", "--step", "m on=weather"), 1, "step[0].on"),
    (("routes", "add", "fast", "--step", "m", "--from", "x.toml"), 2, "by --step or by --from, not both"),
    (("routes", "add", "fast", "--from", "none.toml"), 1, "none.toml cannot be read"),
    (("routes", "show", "fil"), 1, "There is no route 'fil'; did you mean 'filed'?"),
)


async def test_what_cannot_be_done_is_told(operator: Operator) -> None:
    for words, code, message in REFUSED:
        result = await operator.type(*words)
        assert result.exit_code == code, words
        assert message in result.stderr


async def test_a_test_shows_each_step_and_fails_if_one_does(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        operator = await sit_down(gateway_with, {"channel": [channel(up.base_url, "lab", models=["m"])]})
        await operator.see("routes", "add", "fast", "--step", "m", "--step", "gone")
        result = await operator.type("routes", "test", "fast")
        assert result.exit_code == 1
        lines = [line.split() for line in result.stdout.splitlines()]
        assert lines[1][:4] == ["1", "m", "lab", "ok"]
        assert lines[2][:4] == ["2", "gone", "-", "failed:"]
        await operator.see("routes", "edit", "fast", "--step", "m")
        assert (await operator.type("routes", "test", "fast")).exit_code == 0


EXPLAINED: dict[str, Any] = {
    "model": "fast", "operation": "chat", "key": None, "refused": None, "served": True, "balance": "weight",
    "room": None, "channels": [],
    "steps": [
        {
            "step": 1, "verdict": "first", "reserved_usd": 0.5, "balance": None, "on": ["unavailable"], "reason": None,
            "models": [
                {"model": "a", "weight": 9, "chance": 0.9, "channels": []},
                {"model": "b", "weight": 1, "chance": 0.1, "channels": []},
            ],
        }
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("affinity", "line"),
    [
        ({"mode": "auto", "keeps_s": 600.0, "has_choice": True},
         "A conversation stays where it was answered last, for 600 s after each answer."),
        ({"mode": "header", "keeps_s": 0.5, "has_choice": True},
         "A conversation that its client names stays where it was answered last, for 0.5 s after each answer."),
        ({"mode": "off", "keeps_s": 600.0, "has_choice": True},
         'Conversations are not kept together (routing.affinity = "off").'),
        ({"mode": "auto", "keeps_s": 600.0, "has_choice": False}, ""),
    ],
)  # fmt: skip
def test_an_explanation_tells_the_draw_of_models_and_what_keeps_a_conversation(
    affinity: dict[str, Any], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_explanation(EXPLAINED | {"affinity": affinity})
    printed = capsys.readouterr().out.splitlines()
    assert any("a 90 %, b 10 %" in text for text in printed)
    assert (line in printed) if line else not any("onversation" in text for text in printed)


@pytest.mark.parametrize(("loaded", "text"), [("qwen3", "2 of 50, 12 s, qwen3"), (None, "2 of 50, 12 s")])
def test_an_explanation_tells_the_places_the_queue_and_the_loaded_model(
    loaded: str | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = {"places": 1, "waiting": 2, "length": 50, "expected_wait_s": 12.4, "loaded_model": loaded}
    row = {
        "channel": "desk", "rank": None, "chance": 0.0, "reason": "full", "upstream_model": "m", "api_format": "chat",
        "state": "closed", "share": 1.0, "running": 1, "wait_s": 12.4, "price": None, "price_multiplier": 1.0,
        "queue": queue,
    }  # fmt: skip
    affinity = {"mode": "off", "keeps_s": 600.0, "has_choice": False}
    print_explanation(EXPLAINED | {"model": "m", "steps": None, "channels": [row], "affinity": affinity})
    printed = capsys.readouterr().out
    assert text in printed
    assert " 1/1 " in printed
