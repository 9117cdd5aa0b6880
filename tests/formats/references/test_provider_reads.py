"""What a provider reads beside the text of a body, in every format; what is the client's own is none of that."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.inference_request import InferenceRequest
from gateway.domain.usage import MAX_TOKENS, Usage
from gateway.formats.chat.anthropic.request import parse_messages_inference
from gateway.formats.chat.gemini.request import parse_generate_inference
from gateway.formats.chat.openai.chat import parse_chat_inference
from gateway.formats.chat.responses.responses import parse_responses_inference
from gateway.formats.embeddings.openai import parse_embeddings_inference
from gateway.formats.references.provider_reads import NO_READS, ProviderReads, find_reads
from gateway.formats.usage.bounds import bound_prompt, limit_usage
from tests.support.table_rows import table_rows

USER = {"role": "user", "content": "hi"}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"$id": "https://up/schema"}}}
B64 = "QUJD"


def chat(*parts: Any, **more: Any) -> InferenceRequest:
    return parse_chat_inference({"model": "m", "messages": [{"role": "user", "content": list(parts)}, USER], **more})


def messages(*parts: Any, **more: Any) -> InferenceRequest:
    answers = [USER, {"role": "user", "content": list(parts)}]
    return parse_messages_inference({"model": "m", "max_tokens": 9, "messages": answers, **more})


def responses(*items: Any, **more: Any) -> InferenceRequest:
    return parse_responses_inference({"model": "m", "input": [*items, USER], **more})


def gemini(*parts: Any, **more: Any) -> InferenceRequest:
    return parse_generate_inference({"contents": [{"parts": [*parts, {"text": "hi"}]}], **more}, model="m")


def block(kind: str, **source: Any) -> dict[str, Any]:
    return {"type": kind, "source": source}


UNBOUNDED = [
    chat({"type": "image_url", "image_url": {"url": "https://up/x.png"}}),
    chat({"type": "image_url", "image_url": {"url": " HTTPS://up/x.png"}}),
    chat({"type": "image_url", "image_url": {"URL": "//up/x.png"}}),
    chat({"type": "image_url", "image_url": {"url": "data:application/pdf;base64," + B64}}),
    chat({"type": "file", "file": {"file_id": "file-1"}}),
    chat({"type": "file", "file": {"FileID": "file-1"}}),
    chat({"type": "file", "file": {"file_data": "data:application/pdf;base64," + B64}}),
    chat({"type": "file", "file": {"file_data": B64}}),
    chat({"type": "file", "file": "file-1"}),
    chat({"type": "link", "href": "s3://bucket/x"}),
    chat({"type": "input_audio", "input_audio": {"data": B64, "format": "mp3"}}),
    chat({"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + B64}}),
    chat({"type": "document_url", "document_url": "https://up/x.pdf"}),
    chat(cached_content="cachedContents/1"),
    chat(conversation_id="c1"),
    chat(plugins=[{"id": "file-parser"}]),
    parse_chat_inference(
        {"model": "m", "messages": [{"role": "assistant", "content": None, "audio": {"id": "a1"}}, USER]}
    ),
    messages(block("document", type="url", url="https://up/x.pdf")),
    messages(block("document", type="file", file_id="file_1")),
    messages(block("document", type="base64", media_type="application/pdf", data=B64)),
    messages(block("image", type="url", url="https://up/x.png")),
    messages({"type": "tool_result", "tool_use_id": "t", "content": [block("document", type="url", url="gs://up/x")]}),
    messages({"type": "container_upload", "file_id": "file_1"}),
    messages(container="container_1"),
    messages(mcp_servers=[{"type": "url", "url": "https://up"}]),
    messages(thread={"type": "continue", "id": "t"}),
    responses({"type": "item_reference", "id": "msg_1"}),
    responses({"id": "msg_1"}),
    responses({"id": "msg_1", "content": "hi"}),
    responses({"type": "item_reference", "id": "msg_1", "content": "hi", "name": "x"}),
    responses({"Type": "item_reference", "ID": "msg_1"}),
    responses({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "x"}]}),
    responses({"type": "image_generation_call", "id": "ig_1"}),
    responses({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
    responses({"role": "user", "content": [{"type": "input_file", "file_url": "https://up/x.pdf"}]}),
    responses({"role": "user", "content": [{"type": "input_image", "image_url": "https://up/x.png"}]}),
    responses({"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}),
    responses({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", "file_id": "f"}]}),
    responses(previous_response_id="resp_1"),
    responses(conversation={"id": "conv_1"}),
    responses(prompt={"id": "pmpt_1", "version": "2"}),
    gemini({"fileData": {"fileUri": "https://up/x.mp4"}}),
    gemini({"file_data": {"file_uri": "files/1"}}),
    gemini({"inlineData": {"mimeType": "application/pdf", "data": B64}}),
    gemini({"inline_data": {"mime_type": "audio/mp3", "data": B64}}),
    gemini({"functionResponse": {"name": "f", "response": {}, "parts": [{"fileData": {"fileUri": "gs://x/y"}}]}}),
    gemini(cachedContent="cachedContents/1"),
    gemini(cached_content="cachedContents/1"),
    parse_embeddings_inference({"model": "m", "input": "x", "source": "https://up/corpus"}),
    chat(dataset_id=42),
    chat({"type": "file", "file": {"file_id": 123}}),
    messages(block("document", type="file", file_id=5)),
    chat({"type": "input_audio", "input_audio": B64}),
    chat({"type": "document", "document": B64}),
    chat({"type": "document", "document_base64": B64}),
    chat({"type": "video", "frames": [B64, B64]}),
    chat({"type": "input_video", "input_video": B64}),
    chat(chat_template="{% for i in range(99999) %}x{% endfor %}"),
    chat(chat_template_kwargs={"documents": ["x"]}),
    chat(chat_template_kwargs={"preamble": "x" * 100}),
    chat(documents="a text that is not measured"),
    chat(instructions="a text that is not measured"),
    chat(input="a text that is not measured"),
    messages(prompt="a text that is not measured"),
    responses(messages=[USER]),
    responses(chat_template="x"),
    responses({"Type": "item_reference", "id": "msg_1", "role": "user", "content": "hi"}),
    responses({"type": "ITEM_REFERENCE", "id": "msg_1", "role": "user", "content": "hi"}),
    responses({"type": " item_reference", "id": "msg_1", "role": "user", "content": "hi"}),
    parse_chat_inference({"model": "m", "messages": [
        {"role": "assistant", "content": "x", "audio": {"id": "a1", "text": "x"}}, USER]}),
    messages({"type": "image", "source": {"type": "base64", "media_type": "image/png", "mediaType": "application/pdf",
                                          "data": B64}}),
]  # fmt: skip
TOOLS = [
    chat(web_search_options={}),
    chat(enable_search=True),
    chat(search_parameters={"mode": "auto"}),
    chat(tools=[{"type": "web_search"}]),
    chat(tools=[{"type": ["web_search"]}]),
    chat(tools=[{"type": "function", "function": {"name": "f"}, "google_search": {}}]),
    chat(tools=[FUNCTION, {"type": "mcp", "server_url": "https://up"}]),
    messages(tools=[{"type": "web_fetch_20250910", "name": "web_fetch"}]),
    messages(tools=[{"type": "code_execution_20250825", "name": "code_execution"}]),
    responses(tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}]),
    responses(tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]),
    responses(tools=[{"type": "namespace", "name": "n", "tools": [{"type": "mcp", "server_label": "x"}]}]),
    responses({"type": "additional_tools", "tools": [{"type": "web_search"}]}),
    gemini(tools=[{"functionDeclarations": [{"name": "f"}]}, {"googleSearch": {}}]),
    gemini(tools=[{"name": "x", "google_search": {}}]),
    chat(internet=True),
    chat(use_rag_or_web=True),
    chat(tools=[{"type": "function", "function": {"name": "f"}, "web_search": 1}]),
    chat(tools=[{"type": "function", "function": {"name": "f"}, "googleSearch": True}]),
    responses({"type": "additional_tools", "Tools": [{"type": "web_search"}]}),
    responses({"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}),
    responses(prompt={"id": "pmpt_1", "name": "x"}),
    responses(prompt={"ID": "pmpt_1", "variables": {}}),
]  # fmt: skip
NOTHING = [
    parse_chat_inference({"model": "m", "messages": [USER]}),
    chat({"type": "text", "text": "read https://up/x.pdf and file-1"}),
    chat(tools=[FUNCTION], metadata={"url": "https://up"}, seed=7, store=True, background=True),
    chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"$id": "https://up"}}}),
    parse_chat_inference({"model": "m", "messages": [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
        {"role": "assistant", "content": "y", "annotations": [{"type": "url_citation", "url": "https://up"}]}]}),
    messages({"type": "tool_use", "id": "t", "name": "fetch", "input": {"url": "https://up/x.pdf", "file_id": "f"}}),
    messages({"type": "tool_result", "tool_use_id": "t", "content": "x"},
             block("document", type="text", media_type="text/plain", data="a text"),
             {"type": "web_search_result", "url": "https://up", "encrypted_content": "x"}),
    messages(tools=[{"name": "f", "input_schema": {}}, {"type": "bash_20250124", "name": "bash"},
                    {"type": "computer_20250124", "name": "computer", "display_width_px": 1024, "display_number": 1},
                    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10_000}]),
    chat(chat_template_kwargs={"enable_thinking": False, "reasoning_effort": "high"}, seed=7, top_k=3),
    responses({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"text": "x"}]},
              {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "c", "output": ""},
              {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
              {"type": "reasoning", "id": "rs_0123456789abcdef01234567_1", "summary": []},
              tools=[{"type": "custom", "name": "p", "format": {"type": "grammar"}}, {"type": "local_shell"}],
              include=["reasoning.encrypted_content"], prompt_cache_key="k", reasoning={"effort": "low"}),
    gemini({"functionCall": {"id": "1", "name": "f", "args": {"uri": "gs://x"}}},
           {"functionResponse": {"id": "1", "name": "f", "response": {"file_id": "x"}}}),
]  # fmt: skip


@table_rows("inference", UNBOUNDED, ids=lambda call: repr(call.body)[:120])
def test_what_has_an_id_or_an_address_or_no_known_length_is_unbounded(inference: InferenceRequest) -> None:
    assert find_reads(inference).unbounded


@table_rows("inference", TOOLS, ids=lambda call: repr(call.body)[:120])
def test_tools_that_the_provider_runs_are_found(inference: InferenceRequest) -> None:
    assert find_reads(inference).tools


@table_rows("inference", NOTHING, ids=lambda call: repr(call.body)[:120])
def test_texts_and_the_clients_own_data_and_tools_are_nothing_that_a_provider_reads(
    inference: InferenceRequest,
) -> None:
    assert find_reads(inference) is NO_READS


@table_rows(
    "inference",
    [
        chat({"type": "image_url", "image_url": {"url": "data:image/png;base64," + B64}}),
        messages(block("image", type="base64", media_type="image/png", data=B64)),
        responses({"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + B64}]}),
        responses({"type": "image_generation_call", "id": "ig_1", "result": B64}),
        gemini({"inlineData": {"mimeType": "image/png", "data": B64}}),
    ],
)
def test_an_image_in_the_body_has_a_bound(inference: InferenceRequest) -> None:
    assert find_reads(inference) == ProviderReads(images=1)


READ = st.sampled_from(UNBOUNDED + TOOLS + NOTHING)
MODELS = st.sampled_from(["m", "gpt-5.1-codex", "gpt-4", "gemini-2.5-pro", "sonar-pro"])
NAMES = st.sampled_from(["file_id", "documentUri", "source_url", "ID", "vector_store_ids", "cache_id"])
JSON_TEXTS = st.recursive(
    st.text(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "x"]), inner)
)


@given(READ, MODELS, st.integers(0, MAX_TOKENS))
def test_no_prompt_is_charged_beyond_what_may_be_reserved_for_it(
    inference: InferenceRequest, model: str, reported: int
) -> None:
    reads = find_reads(inference)
    charged = limit_usage(Usage(reported, 1, source="upstream"), inference, model).prompt_tokens
    assert charged <= reported
    if reads is not NO_READS:
        assert charged <= bound_prompt(inference, reads, model)


@given(JSON_TEXTS, NAMES, st.text(min_size=1), st.integers(0, 5))
def test_an_id_is_found_wherever_it_is(inner: Any, name: str, value: str, depth: int) -> None:
    part: Any = {"type": "x", "beside": inner, name: value}
    for _ in range(depth):
        part = {"type": "y", "parts": [inner, part]}
    assert find_reads(chat(part)).unbounded
