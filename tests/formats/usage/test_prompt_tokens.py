from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.token_estimate import estimate_text
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.completions import parse_completions_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.rerank import parse_rerank_inference
from gateway.formats.usage.prompt_tokens import estimate_prompt
from tests.support.table_rows import table_rows

WORDS = "Some words that are asked with. " * 20
TOKENS = estimate_text(WORDS)
USER = {"role": "user"}


def chat(*messages: Any, **more: Any) -> int:
    return estimate_prompt(parse_chat_inference({"model": "m", "messages": list(messages), **more}))


def test_a_text_is_counted_in_whichever_language_it_is_asked() -> None:
    asked = {
        "chat": chat({**USER, "content": WORDS}),
        "parts": chat({**USER, "content": [{"type": "text", "text": WORDS}]}),
        "messages": estimate_prompt(
            parse_messages_inference({"model": "m", "max_tokens": 9, "messages": [{**USER, "content": WORDS}]})
        ),
        "system": estimate_prompt(
            parse_messages_inference(
                {"model": "m", "max_tokens": 9, "system": WORDS, "messages": [{**USER, "content": "x"}]}
            )
        ),
        "responses": estimate_prompt(parse_responses_inference({"model": "m", "input": WORDS})),
        "items": estimate_prompt(
            parse_responses_inference(
                {"model": "m", "input": [{**USER, "content": [{"type": "input_text", "text": WORDS}]}]}
            )
        ),
        "completions": estimate_prompt(parse_completions_inference({"model": "m", "prompt": WORDS})),
        "embeddings": estimate_prompt(parse_embeddings_inference({"model": "m", "input": [WORDS]})),
        "rerank": estimate_prompt(parse_rerank_inference({"model": "m", "query": "a", "documents": [WORDS]})),
    }
    assert {name: tokens for name, tokens in asked.items() if not TOKENS <= tokens <= TOKENS + 3} == {}


def test_ids_of_tokens_are_counted_as_they_are() -> None:
    assert estimate_prompt(parse_embeddings_inference({"model": "m", "input": [[1, 2, 3], [4]]})) == 4
    assert estimate_prompt(parse_completions_inference({"model": "m", "prompt": [5] * 700})) == 700


def test_a_query_is_counted_with_every_document() -> None:
    one, two = (
        estimate_prompt(parse_rerank_inference({"model": "m", "query": WORDS, "documents": ["x"] * count}))
        for count in (1, 11)
    )
    assert two - one >= 10 * TOKENS


def test_tools_arguments_and_results_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "find", "description": WORDS, "parameters": {}}}]
    reported = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"arguments": WORDS}}]}
    assert chat({**USER, "content": "x"}, tools=tools) >= TOKENS
    assert chat({**USER, "content": "x"}, reported) >= TOKENS


@table_rows(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://up/x.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 900_000}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 900_000}},
    ],
    ids=["address", "data URL", "Anthropic's"],
)
def test_an_image_is_one_whatever_it_weighs(part: dict[str, Any]) -> None:
    assert 1_000 <= chat({**USER, "content": [part]}) <= 2_100


def test_a_type_that_is_a_list_is_a_word_of_the_caller() -> None:
    """What a tool is given is the model's own JSON: any name may stand for anything in it."""
    called = {"type": "tool_use", "id": "t", "name": "f", "input": {"type": ["x"], "said": WORDS}}
    asked = [{**USER, "content": "hi"}, {"role": "assistant", "content": [called]}]
    assert estimate_prompt(parse_messages_inference({"model": "m", "max_tokens": 9, "messages": asked})) >= TOKENS


def test_a_document_is_counted_by_its_weight() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "A" * 4_000_000}
    body = {"model": "m", "max_tokens": 9, "messages": [{**USER, "content": [{"type": "document", "source": source}]}]}
    inference = parse_messages_inference(body)
    assert 50_000 <= estimate_prompt(inference) <= inference.max_prompt_tokens


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.sampled_from(["text", "image_url", "input", "x"]), JSON, max_size=3), max_size=4))
def test_whatever_stands_in_a_part_the_estimate_is_within_the_bound(parts: list[dict[str, Any]]) -> None:
    inference = parse_chat_inference(
        {"model": "m", "messages": [{**USER, "content": [{"type": "text", **part} for part in parts]}]}
    )
    assert 0 <= estimate_prompt(inference) <= inference.max_prompt_tokens
