"""Bodies that pass: what another provider signed, or named, does not reach one that would refuse it."""

import copy
from typing import Any

from gateway.formats.chat.anthropic.passthrough_body import build_passed_body
from gateway.formats.chat.anthropic.request import parse_messages_inference
from tests.support.table_rows import table_rows

CLAUDE = "claude-sonnet-4-5"
OWN = {"type": "thinking", "thinking": "well", "signature": "EqQBCgIYAhIM"}
UNSIGNED = {"type": "thinking", "thinking": "hm", "signature": ""}
GEMINIS = {"type": "thinking", "thinking": "so", "signature": "gemini:abcd"}
SEALED = {"type": "redacted_thinking", "data": "EmwKAhgB"}
THINK = {"type": "enabled", "budget_tokens": 1024}


def use(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "f", "input": {}}


def result(name: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": "4"}


def talk(*content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Turn and turn about, the user first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": blocks} for at, blocks in enumerate(content)]
    return {"model": "m", "max_tokens": 2048, "messages": messages, **more}


def send(body: dict[str, Any], model: str = CLAUDE) -> dict[str, Any]:
    """The written body; the call's own is left as it was."""
    before = copy.deepcopy(body)
    written = build_passed_body(parse_messages_inference(body), model)
    assert body == before
    assert written["model"] == model
    return written


ASK = [{"type": "text", "text": "Go", "cache_control": {"type": "ephemeral"}}]


def test_a_body_with_nothing_of_others_is_the_same_but_for_the_model() -> None:
    body = talk(ASK, [OWN, SEALED, use("toolu_1")], [result("toolu_1")], thinking=THINK, unknown={"kept": [1]})
    written = send(body)
    assert written == body | {"model": CLAUDE}
    assert written["messages"] is body["messages"]


@table_rows("foreign", [UNSIGNED, GEMINIS, {"type": "thinking", "thinking": "?"}])
def test_claude_is_not_shown_what_it_did_not_sign(foreign: dict[str, Any]) -> None:
    words = {"type": "text", "text": "4"}
    written = send(talk(ASK, [foreign, words], ASK, [OWN, words], ASK, thinking=THINK))
    assert [message["content"] for message in written["messages"]] == [ASK, [words], ASK, [OWN, words], ASK]
    assert written["thinking"] == THINK


@table_rows("foreign", [UNSIGNED, GEMINIS])
def test_a_turn_in_progress_that_lost_its_thought_goes_on_without_thinking(foreign: dict[str, Any]) -> None:
    written = send(talk(ASK, [foreign, use("toolu_1")], [result("toolu_1")], thinking=THINK))
    assert "thinking" not in written
    assert written["messages"][1]["content"] == [use("toolu_1")]


def test_a_model_that_decides_for_itself_goes_on_thinking() -> None:
    adaptive = {"type": "adaptive"}
    body = talk(ASK, [UNSIGNED, use("toolu_1")], [result("toolu_1")], thinking=adaptive)
    assert send(body, "claude-opus-4-7")["thinking"] == adaptive


def test_a_message_of_which_nothing_is_left_is_left_out() -> None:
    written = send(talk(ASK, [GEMINIS], ASK))
    assert [message["role"] for message in written["messages"]] == ["user", "user"]


def test_other_vendors_of_the_language_get_back_what_they_did_not_sign() -> None:
    body = talk(ASK, [UNSIGNED, GEMINIS, use("toolu_1")], [result("toolu_1")])
    assert send(body, "kimi-k2")["messages"][1]["content"] == [UNSIGNED, use("toolu_1")]


def test_ids_of_other_letters_are_changed_alike_in_call_and_result() -> None:
    odd = ("functions.f:0", "functions_f:0", "ünïcode")
    written = send(talk(ASK, [use(name) for name in odd], [result(name) for name in odd]))
    called = [block["id"] for block in written["messages"][1]["content"]]
    assert called == [block["tool_use_id"] for block in written["messages"][2]["content"]]
    assert len(set(called)) == 3
    assert all(name.replace("_", "").isalnum() and name.isascii() for name in called)


def test_a_turn_in_progress_that_another_provider_began_without_a_thought_goes_on_without_thinking() -> None:
    body = talk(ASK, [use("toolu_1")], [result("toolu_1")], thinking=THINK)
    written = send(body)
    assert "thinking" not in written
    assert written["messages"] == body["messages"]
    assert body["thinking"] == THINK


@table_rows("nonsense", [None, 1, [], {}, ["x"]])
def test_nonsense_is_left_for_the_provider_to_refuse(nonsense: Any) -> None:
    blocks = [{"type": "thinking", "signature": nonsense}, {"type": "tool_use", "id": nonsense}]
    written = send(talk(ASK, blocks, [{"type": "tool_result", "tool_use_id": nonsense}]))
    assert written["messages"][1]["content"] == blocks[1:]


SYSTEM = {"role": "system", "content": "Be quick."}
QUICK = {"type": "text", "text": "Be quick."}


@table_rows("model", ["deepseek-v4-pro", CLAUDE])
@table_rows(
    ("messages", "written"),
    [
        ([SYSTEM, "user"], [("user", [*ASK, QUICK])]),
        (["user", SYSTEM], [("user", [*ASK, QUICK])]),
        (["user", "call", SYSTEM, "result"], [("user", ASK), ("call", None), ("user", [result("toolu_1"), QUICK])]),
        (["user", "call", "result", SYSTEM], [("user", ASK), ("call", None), ("user", [result("toolu_1"), QUICK])]),
        (["user", "call", "result", "said", SYSTEM], [("user", ASK), ("call", None), ("user", [result("toolu_1")]),
                                                      ("said", None), ("user", [QUICK])]),
    ],
)  # fmt: skip
def test_system_messages_between_others_are_the_users_where_only_those_are_known(
    messages: list[Any], written: list[tuple[str, Any]], model: str
) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "user": {"role": "user", "content": ASK},
        "call": {"role": "assistant", "content": [use("toolu_1")]},
        "result": {"role": "user", "content": [result("toolu_1")]},
        "said": {"role": "assistant", "content": "4"},
    }
    body = {"model": "m", "max_tokens": 9, "messages": [kinds.get(str(one), one) for one in messages]}
    expected = [kinds[kind] if blocks is None else {"role": "user", "content": blocks} for kind, blocks in written]
    assert send(body, model)["messages"] == expected
    assert send(body, "claude-opus-4-8")["messages"] == body["messages"]


def test_references_to_tools_are_texts_for_any_server_but_anthropics() -> None:
    found = result("toolu_1") | {"content": [{"type": "tool_reference", "tool_name": "TaskStop"}, QUICK]}
    body = talk(ASK, [use("toolu_1")], [found])
    assert send(body)["messages"] == body["messages"]
    reported = {"type": "text", "text": "Tool available: TaskStop"}
    assert send(body, "deepseek-v4-pro")["messages"][2]["content"] == [found | {"content": [reported, QUICK]}]
