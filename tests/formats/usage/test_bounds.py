from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_TOKENS, Usage
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.openai.completions import parse_completions_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.images.openai import parse_images_inference
from gateway.formats.references.provider_reads import find_reads
from gateway.formats.rerank import parse_rerank_inference
from gateway.formats.usage.bounds import ADDED_TOKENS, MAX_ANSWER_TOKENS, MAX_CONTEXT_TOKENS, bound_prompt, limit_usage
from tests.support.table_rows import table_rows

USER = {"role": "user", "content": "hi"}


def chat(*parts: dict[str, Any], **more: Any) -> InferenceRequest:
    message = {"role": "user", "content": list(parts)} if parts else USER
    return parse_chat_inference({"model": "m", "messages": [message], **more})


def responses(**more: Any) -> InferenceRequest:
    return parse_responses_inference({"model": "m", "input": "hi", **more})


def reported(prompt: int, completion: int = 0, **more: Any) -> Usage:
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
    return parse_messages_inference({"model": "m", "max_tokens": 100, "messages": asked})


def by_address(kind: str) -> dict[str, Any]:
    """A part of Anthropic's language."""
    return {"type": kind, "source": {"type": "url", "url": "https://up/x"}}


TAGGED = chat(metadata={"url": "https://up"})
PDF = {"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 400_000}}
SEARCH: dict[str, Any] = {"type": "web_search"}
CAN_BE = {
    "a system prompt of the provider's": (chat(), reported(20_000, 5)),
    "a long answer": (chat(), reported(5, 128_000)),
    "an image that counts for many": (chat(IMAGE), reported(48_169, 5)),
    "a PDF in the body": (chat(PDF), reported(200_000, 5)),
    "a file that the provider keeps": (chat(FILE), reported(900_000, 5)),
    "a PDF that the provider fetches": (chat(FAR_PDF), reported(900_000, 5)),
    "a video that the provider fetches": (chat(FAR_VIDEO), reported(900_000, 5)),
    "a document that the provider fetches": (chat(FAR_DOCUMENT), reported(900_000, 5)),
    "a document of Anthropic's that the provider fetches": (messages(by_address("document")), reported(900_000, 5)),
    "a file of a response that the provider fetches": (
        responses(input=[{"role": "user", "content": [{"type": "input_file", "file_data": "https://up/x.pdf"}]}]),
        reported(900_000, 5),
    ),
    "an earlier response": (responses(previous_response_id="resp_1"), reported(900_000, 5)),
    "a conversation": (responses(conversation="conv_1"), reported(900_000, 5)),
    "what a search has found": (responses(tools=[SEARCH]), reported(900_000, 300_000)),
    "a model that searches": (attrs.evolve(chat(), model="sonar-pro"), reported(300_000, 5)),
    "thoughts beside max_tokens": (chat(max_tokens=100), reported(5, 30_100, reasoning_tokens=30_000)),
    "a budget of thoughts": (
        parse_messages_inference(
            {"model": "m", "max_tokens": 100, "messages": [USER],
             "thinking": {"type": "enabled", "budget_tokens": 8_000}}
        ),
        reported(5, 8_100),
    ),
    "several answers": (chat(max_tokens=100, n=4), reported(5, 400)),
    "tries that are not returned": (
        parse_completions_inference({"model": "m", "prompt": "x", "max_tokens": 50, "best_of": 8}), reported(2, 400)
    ),
    "a mark of the end": (chat(max_tokens=100), reported(5, 101)),
    "a cached prompt": (chat(), Usage(5, 5, 5, "upstream")),
    "an embedding": (parse_embeddings_inference({"model": "m", "input": "hi there"}), reported(3)),
    "a query with each document": (
        parse_rerank_inference({"model": "m", "query": "q" * 500, "documents": ["d"] * 50}), reported(6_000)
    ),
    "an image of many tokens": (
        parse_images_inference({"model": "m", "prompt": "a cat", "n": 2}), reported(300, 16_464)
    ),
}  # fmt: skip


@table_rows("name", CAN_BE)
def test_what_an_honest_provider_may_say_is_charged_as_it_says(name: str) -> None:
    inference, usage = CAN_BE[name]
    assert limit_usage(usage, inference, inference.model) is usage


@table_rows(
    ("inference", "usage", "prompt", "completion"),
    [
        (chat(), reported(MAX_TOKENS, MAX_TOKENS), chat().max_prompt_tokens, MAX_ANSWER_TOKENS),
        (chat(max_tokens=7), reported(5, 50_000), 5, 7),
        (chat(max_completion_tokens=7, n=3), reported(5, 50_000), 5, 21),
        (chat(max_tokens=7), reported(5, MAX_TOKENS, reasoning_tokens=MAX_TOKENS), 5, MAX_ANSWER_TOKENS + 7),
        (chat(FAR_PDF), reported(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (messages(by_address("image")), reported(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (
            messages(CALLED, role="assistant"),
            reported(MAX_TOKENS, 5),
            messages(CALLED, role="assistant").max_prompt_tokens,
            5,
        ),
        (
            chat(metadata={"url": "https://up"}),
            reported(MAX_TOKENS, 5),
            chat(metadata={"url": "https://up"}).max_prompt_tokens,
            5,
        ),
        (chat(FILE), reported(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (responses(previous_response_id="r"), reported(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (chat(IMAGE), reported(MAX_TOKENS, 5), MAX_CONTEXT_TOKENS, 5),
        (chat(INLINE), reported(MAX_TOKENS, 5), chat(INLINE).max_prompt_tokens, 5),
        (parse_embeddings_inference({"model": "m", "input": "hi"}), reported(MAX_TOKENS), 3, 0),
        (parse_messages_inference({"model": "m", "max_tokens": 0, "messages": [USER]}), reported(5, 99_999), 5, 0),
    ],
)
def test_what_cannot_be_is_charged_as_the_bound(
    inference: InferenceRequest, usage: Usage, prompt: int, completion: int
) -> None:
    limited = limit_usage(usage, inference, inference.model)
    assert (limited.prompt_tokens, limited.completion_tokens, limited.source) == (prompt, completion, "bound")


@table_rows(
    ("model", "inference", "prompt", "completion"),
    [
        ("gpt-5.1-codex", responses(), 400_000, 128_000),
        ("gpt-5.1-codex", responses(input=[{"type": "item_reference", "id": "msg_1"}, USER]), 400_000, 128_000),
        ("gpt-4o-mini", chat(n=3), 3 * 128_000, 3 * 16_384),
        ("openai/gpt-4o-2024-08-06", chat(IMAGE), 128_000, 16_384),
        ("o4-mini-deep-research", responses(tools=[SEARCH]), 10 * 200_000, 4 * 100_000),
    ],
)  # fmt: skip
def test_a_known_model_is_believed_up_to_its_context_window(
    model: str, inference: InferenceRequest, prompt: int, completion: int
) -> None:
    """An item of 60,000 tokens that a provider keeps was charged as the 125 bytes of its id: 480 times too little."""
    possible = reported(prompt, completion)
    assert limit_usage(possible, inference, model) is possible
    limited = limit_usage(reported(MAX_TOKENS, MAX_TOKENS), inference, model)
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
    inference = attrs.evolve(responses(previous_response_id="resp_1", **more), earlier_tokens=earlier)
    new = inference.max_prompt_tokens if reserved == 5_000 else 0
    assert bound_prompt(inference, find_reads(inference), model) == reserved + new
    assert limit_usage(reported(MAX_TOKENS), inference, model).prompt_tokens == believed


def test_a_type_that_is_a_list_is_a_schema() -> None:
    schema = {"name": "s", "schema": {"type": "object", "properties": {"x": {"type": ["string", "null"]}}}}
    inference = chat(response_format={"type": "json_schema", "json_schema": schema})
    assert limit_usage(reported(MAX_TOKENS, 5), inference, "m").prompt_tokens == inference.max_prompt_tokens


COUNTS = st.integers(0, MAX_TOKENS)
CALLS = st.sampled_from([inference for inference, _ in CAN_BE.values()])


@given(CALLS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_no_usage_is_made_larger_nor_its_parts_more_than_the_whole(  # noqa: PLR0917 - what a usage has
    inference: InferenceRequest, prompt: int, completion: int, cached: int, written: int, long: int
) -> None:
    usage = Usage(prompt, completion, cached, "upstream", written_tokens=written, written_long_tokens=long)
    limited = limit_usage(usage, inference, inference.model)
    assert limited.prompt_tokens <= min(prompt, MAX_CONTEXT_TOKENS)
    assert limited.completion_tokens <= min(completion, 40 * MAX_ANSWER_TOKENS)
    assert (limited.source == "bound") is (limited != usage)
    if limited.source == "bound":
        assert limited.cached_tokens + limited.written_tokens <= limited.prompt_tokens
        assert limited.written_long_tokens <= limited.written_tokens
    assert limit_usage(limited, inference, inference.model) == limited


@given(st.integers(0, 3_000))
def test_a_text_is_never_charged_for_more_than_its_bytes_and_what_is_put_around_it(chars: int) -> None:
    inference = parse_chat_inference({"model": "m", "messages": [{"role": "user", "content": "x" * chars}]})
    for prompt in (inference.max_prompt_tokens, ADDED_TOKENS, 10 * ADDED_TOKENS, MAX_TOKENS):
        assert (
            limit_usage(reported(prompt), inference, "m").prompt_tokens
            <= 2 * inference.max_prompt_tokens + ADDED_TOKENS
        )
