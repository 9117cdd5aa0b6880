from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_TOKENS, Usage
from gateway.formats.anthropic.request import parse_messages_call
from gateway.formats.openai.chat import parse_chat_call
from gateway.formats.openai.completions import parse_completions_call
from gateway.formats.openai.embeddings import parse_embeddings_call
from gateway.formats.openai.images import parse_images_call
from gateway.formats.openai.responses import parse_responses_call
from gateway.formats.provider_reads import find_reads
from gateway.formats.rerank import parse_rerank_call
from gateway.formats.usage_bounds import ADDED_TOKENS, MAX_ANSWER_TOKENS, MAX_CONTEXT_TOKENS, bound_prompt, limit_usage
from tests.support.table_rows import table_rows

USER = {"role": "user", "content": "hi"}


def chat(*parts: dict[str, Any], **more: Any) -> InferenceRequest:
    message = {"role": "user", "content": list(parts)} if parts else USER
    return parse_chat_call({"model": "m", "messages": [message], **more})


def responses(**more: Any) -> InferenceRequest:
    return parse_responses_call({"model": "m", "input": "hi", **more})


def said(prompt: int, completion: int = 0, **more: Any) -> Usage:
    return Usage(prompt, completion, source="upstream", **more)


IMAGE = {"type": "image_url", "image_url": {"url": "https://up/x.png"}}
INLINE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
FILE = {"type": "file", "file": {"file_id": "file-1"}}
FAR_PDF = {"type": "file", "file": {"file_data": "HTTPS://up/x.pdf"}}
FAR_VIDEO = {"type": "video_url", "video_url": {"url": "https://up/x.mp4"}}
FAR_DOCUMENT = {"type": "document_url", "document_url": "https://up/x.pdf"}
CALLED = {"type": "tool_use", "id": "t", "name": "fetch", "input": {"url": "https://up/x.pdf"}}


def messages(*parts: dict[str, Any], role: str = "user") -> InferenceRequest:
    asked = [USER, {"role": role, "content": list(parts)}]
    return parse_messages_call({"model": "m", "max_tokens": 100, "messages": asked})


def by_address(kind: str) -> dict[str, Any]:
    """A part of Anthropic's language."""
    return {"type": kind, "source": {"type": "url", "url": "https://up/x"}}


TAGGED = chat(metadata={"url": "https://up"})
PDF = {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 400_000}}
SEARCH: dict[str, Any] = {"type": "web_search"}
CAN_BE = {
    "a system prompt of the provider's": (chat(), said(20_000, 5)),
    "a long answer": (chat(), said(5, 128_000)),
    "an image that counts for many": (chat(IMAGE), said(48_169, 5)),
    "a PDF in the body": (chat(PDF), said(200_000, 5)),
    "a file that the provider keeps": (chat(FILE), said(900_000, 5)),
    "a PDF that the provider fetches": (chat(FAR_PDF), said(900_000, 5)),
    "a video that the provider fetches": (chat(FAR_VIDEO), said(900_000, 5)),
    "a document that the provider fetches": (chat(FAR_DOCUMENT), said(900_000, 5)),
    "a document of Anthropic's that the provider fetches": (messages(by_address("document")), said(900_000, 5)),
    "a file of a response that the provider fetches": (
        responses(input=[{"role": "user", "content": [{"type": "input_file", "file_data": "https://up/x.pdf"}]}]),
        said(900_000, 5),
    ),
    "an earlier response": (responses(previous_response_id="resp_1"), said(900_000, 5)),
    "a conversation": (responses(conversation="conv_1"), said(900_000, 5)),
    "what a search has found": (responses(tools=[SEARCH]), said(900_000, 300_000)),
    "a model that searches": (attrs.evolve(chat(), model="sonar-pro"), said(300_000, 5)),
    "thoughts beside max_tokens": (chat(max_tokens=100), said(5, 30_100, reasoning_tokens=30_000)),
    "a budget of thoughts": (
        parse_messages_call(
            {"model": "m", "max_tokens": 100, "messages": [USER],
             "thinking": {"type": "enabled", "budget_tokens": 8_000}}
        ),
        said(5, 8_100),
    ),
    "several answers": (chat(max_tokens=100, n=4), said(5, 400)),
    "tries that are not returned": (
        parse_completions_call({"model": "m", "prompt": "x", "max_tokens": 50, "best_of": 8}), said(2, 400)
    ),
    "a mark of the end": (chat(max_tokens=100), said(5, 101)),
    "a cached prompt": (chat(), Usage(5, 5, 5, "upstream")),
    "an embedding": (parse_embeddings_call({"model": "m", "input": "hi there"}), said(3)),
    "a query with each document": (
        parse_rerank_call({"model": "m", "query": "q" * 500, "documents": ["d"] * 50}), said(6_000)
    ),
    "an image of many tokens": (parse_images_call({"model": "m", "prompt": "a cat", "n": 2}), said(300, 16_464)),
}  # fmt: skip


@table_rows("name", CAN_BE)
def test_what_an_honest_provider_may_say_is_charged_as_it_says(name: str) -> None:
    call, usage = CAN_BE[name]
    assert limit_usage(usage, call, call.model) is usage


@table_rows(
    ("call", "usage", "prompt", "completion"),
    [
        (chat(), said(MAX_TOKENS, MAX_TOKENS), chat().max_prompt_tokens, MAX_ANSWER_TOKENS),
        (chat(max_tokens=7), said(5, 50_000), 5, 7),
        (chat(max_completion_tokens=7, n=3), said(5, 50_000), 5, 21),
        (chat(max_tokens=7), said(5, MAX_TOKENS, reasoning_tokens=MAX_TOKENS), 5, MAX_ANSWER_TOKENS + 7),
        (chat(FAR_PDF), said(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (messages(by_address("image")), said(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (
            messages(CALLED, role="assistant"),
            said(MAX_TOKENS, 5),
            messages(CALLED, role="assistant").max_prompt_tokens,
            5,
        ),
        (
            chat(metadata={"url": "https://up"}),
            said(MAX_TOKENS, 5),
            chat(metadata={"url": "https://up"}).max_prompt_tokens,
            5,
        ),
        (chat(FILE), said(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (responses(previous_response_id="r"), said(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (chat(IMAGE), said(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (chat(INLINE), said(MAX_TOKENS, 5), chat(INLINE).max_prompt_tokens, 5),
        (parse_embeddings_call({"model": "m", "input": "hi"}), said(MAX_TOKENS), 3, 0),
        (parse_messages_call({"model": "m", "max_tokens": 0, "messages": [USER]}), said(5, 99_999), 5, 0),
    ],
)
def test_what_cannot_be_is_charged_as_the_bound(
    call: InferenceRequest, usage: Usage, prompt: int, completion: int
) -> None:
    limited = limit_usage(usage, call, call.model)
    assert (limited.prompt_tokens, limited.completion_tokens, limited.source) == (prompt, completion, "bound")


@table_rows(
    ("model", "call", "prompt", "completion"),
    [
        ("gpt-5.1-codex", responses(), 400_000, 128_000),
        ("gpt-5.1-codex", responses(input=[{"type": "item_reference", "id": "msg_1"}, USER]), 400_000, 128_000),
        ("gpt-4o-mini", chat(n=3), 3 * 128_000, 3 * 16_384),
        ("openai/gpt-4o-2024-08-06", chat(IMAGE), 128_000, 16_384),
        ("o4-mini-deep-research", responses(tools=[SEARCH]), 10 * 200_000, 4 * 100_000),
    ],
)  # fmt: skip
def test_a_known_model_is_believed_up_to_its_context_window(
    model: str, call: InferenceRequest, prompt: int, completion: int
) -> None:
    """An item of 60,000 tokens that a provider keeps was charged as the 125 bytes of its id: 480 times too little."""
    possible = said(prompt, completion)
    assert limit_usage(possible, call, model) is possible
    limited = limit_usage(said(MAX_TOKENS, MAX_TOKENS), call, model)
    assert (limited.prompt_tokens, limited.completion_tokens) == (prompt, completion)


@table_rows(
    ("more", "model", "reserved", "believed"),
    [
        ({}, "gpt-5.1-codex", 5_000, 400_000),
        ({}, "m", 5_000, MAX_CONTEXT_TOKENS),
        ({"earlier_tokens": 500_000}, "gpt-5.1-codex", 400_000, 400_000),
        ({"earlier_tokens": 0}, "gpt-5.1-codex", 400_000, 400_000),
        ({"tools": [SEARCH]}, "gpt-5.1-codex", 4_000_000, 4_000_000),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "gpt-5.1-codex", 400_000, 400_000),
    ],
)
def test_a_response_that_goes_on_reads_what_the_last_one_had_and_what_is_new(
    more: dict[str, Any], model: str, reserved: int, believed: int
) -> None:
    earlier = more.pop("earlier_tokens", 5_000)
    call = attrs.evolve(responses(previous_response_id="resp_1", **more), earlier_tokens=earlier)
    new = call.max_prompt_tokens if reserved == 5_000 else 0
    assert bound_prompt(call, find_reads(call), model) == reserved + new
    assert limit_usage(said(MAX_TOKENS), call, model).prompt_tokens == believed


def test_a_type_that_is_a_list_is_a_schema() -> None:
    schema = {"name": "s", "schema": {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}}
    call = chat(response_format={"type": "json_schema", "json_schema": schema})
    assert limit_usage(said(MAX_TOKENS, 5), call, "m").prompt_tokens == call.max_prompt_tokens


COUNTS = st.integers(0, MAX_TOKENS)
CALLS = st.sampled_from([call for call, _ in CAN_BE.values()])


@given(CALLS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_no_usage_is_made_larger_nor_its_parts_more_than_the_whole(  # noqa: PLR0917 - what a usage has
    call: InferenceRequest, prompt: int, completion: int, cached: int, written: int, long: int
) -> None:
    usage = Usage(prompt, completion, cached, "upstream", written_tokens=written, written_long_tokens=long)
    limited = limit_usage(usage, call, call.model)
    assert limited.prompt_tokens <= min(prompt, MAX_CONTEXT_TOKENS)
    assert limited.completion_tokens <= min(completion, 40 * MAX_ANSWER_TOKENS)
    assert (limited.source == "bound") is (limited != usage)
    if limited.source == "bound":
        assert limited.cached_tokens + limited.written_tokens <= limited.prompt_tokens
        assert limited.written_long_tokens <= limited.written_tokens
    assert limit_usage(limited, call, call.model) == limited


@given(st.integers(0, 3_000))
def test_a_text_is_never_charged_for_more_than_its_bytes_and_what_is_put_around_it(chars: int) -> None:
    call = parse_chat_call({"model": "m", "messages": [{"role": "user", "content": "x" * chars}]})
    for prompt in (call.max_prompt_tokens, ADDED_TOKENS, 10 * ADDED_TOKENS, MAX_TOKENS):
        assert limit_usage(said(prompt), call, "m").prompt_tokens <= 2 * call.max_prompt_tokens + ADDED_TOKENS
