"""Ids of things kept at a provider, wherever and however a request names them."""

from typing import Any

from gateway.formats.references.stored import list_created_ids, list_stored_references
from tests.support.table_rows import table_rows

GOOGLE = "https://generativelanguage.googleapis.com/v1beta/files/abc"


def with_content(*content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": list(content), **more}]}


def part(**file_data: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"fileData": file_data}]}]}


NAMED: list[tuple[dict[str, Any], str, str]] = [
    (with_content({"type": "file", "file": {"file_id": "x"}}), "file_id", "messages[0].content[0].file.file_id"),
    (with_content({"type": "file", "file": {"File_ID": "x"}}), "file_id", "messages[0].content[0].file.File_ID"),
    (with_content({"type": "file", "file": {"ﬁle_id": "x"}}), "file_id", "messages[0].content[0].file.ﬁle_id"),
    (with_content({"type": "container_upload", "file_id": "x"}), "file_id", "messages[0].content[0].file_id"),
    (with_content({"type": "image", "source": {"type": "file", "file_id": "x"}}), "file_id",
     "messages[0].content[0].source.file_id"),
    (with_content({"type": "tool_result", "content": [{"source": {"file_id": "x"}}]}), "file_id",
     "messages[0].content[0].content[0].source.file_id"),
    (with_content(role="assistant", audio={"id": "x"}), "audio", "messages[0].audio"),
    ({"file_id": "x"}, "file_id", "file_id"),
    ({"file_id": {"id": "x"}}, "file_id", "file_id"),
    (with_content({"type": "file", "file": {"id": "x"}}), "file_id", "messages[0].content[0].file"),
    ({"conversation_id": "x"}, "conversation", "conversation_id"),
    ({"thread_id": "x"}, "conversation", "thread_id"),
    ({"input": [{"type": " item_reference", "id": "x"}]}, "item_reference", "input[0]"),
    ({"file_ids": ["x"]}, "file_id", "file_ids"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "file_id",
     "input[0].content[0].file_id"),
    ({"input": [{"type": "function_call_output", "output": [{"type": "input_image", "file_id": "x"}]}]}, "file_id",
     "input[0].output[0].file_id"),
    ({"input": [{"type": "code_interpreter_call", "container_id": "x", "code": "1"}]}, "container",
     "input[0].container_id"),
    ({"input": [{"type": "mcp_approval_response", "approval_request_id": "x"}]}, "item_reference",
     "input[0].approval_request_id"),
    ({"tools": [{"type": "file_search", "vector_store_ids": ["x"]}]}, "vector_store_ids", "tools[0].vector_store_ids"),
    ({"tools": [{"type": "code_interpreter", "container": "x"}]}, "container", "tools[0].container"),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["x"]}}]}, "file_id",
     "tools[0].container.file_ids"),
    ({"tools": [{"type": "image_generation", "input_image_mask": {"file_id": "x"}}]}, "file_id",
     "tools[0].input_image_mask.file_id"),
    ({"container": {"id": "x", "skills": [{"type": "anthropic", "skill_id": "pptx"}]}}, "container", "container"),
    ({"container": {"skills": [{"type": "custom", "skill_id": "x"}]}}, "skill_id", "container.skills[0].skill_id"),
    ({"conversation": {"id": "x"}}, "conversation", "conversation"),
    ({"prompt": {"id": "x", "version": "2"}}, "prompt", "prompt"),
    ({"voice": {"id": "x"}}, "voice", "voice"),
    ({"cachedContent": "x"}, "cachedContent", "cachedContent"),
    ({"extra_body": {"google": {"cached_content": "x"}}}, "cachedContent", "extra_body.google.cached_content"),
    (part(fileUri=GOOGLE), "file_uri", "contents[0].parts[0].fileData.fileUri"),
    (part(file_uri="files/abc"), "file_uri", "contents[0].parts[0].fileData.file_uri"),
    (part(fileUri=GOOGLE.replace("files", "%66iles").upper()), "file_uri", "contents[0].parts[0].fileData.fileUri"),
    (part(fileUri="http://127.0.0.1:9/v1beta/files/abc"), "file_uri", "contents[0].parts[0].fileData.fileUri"),
    (part(fileUri="gs://bucket/a.pdf"), "file_uri", "contents[0].parts[0].fileData.fileUri"),
    (
        with_content({"type": "image_url", "image_url": {"url": GOOGLE}}),
        "file_uri",
        "messages[0].content[0].image_url.url",
    ),
    *((part(fileUri=address), "file_uri", "contents[0].parts[0].fileData.fileUri") for address in (
        "g\ts://bucket/a.pdf", "gs:\n//bucket/a.pdf", "v1beta/files/abc", "/v1beta/files/abc", "./files/abc",
        GOOGLE.replace("/", "\\"), GOOGLE.replace("//", "/"), GOOGLE.replace("//", "///"),
    )),
    *(({name: ["https://up/x.png", "gs://bucket/x"]}, "file_uri", name) for name in ("image_urls", "images", "videos")),
]  # fmt: skip


@table_rows(("body", "field", "where"), NAMED, ids=[where for _, _, where in NAMED])
def test_every_id_is_found_with_its_place(body: dict[str, Any], field: str, where: str) -> None:
    (found,) = list_stored_references(body, items="input" in body)
    assert (found.field, found.param) == (field, where)
    assert found.id == "x" or field == "file_uri"


ITEMS: list[tuple[dict[str, Any], bool | None]] = [
    ({"type": "item_reference", "id": "x"}, False),
    ({"id": "x"}, False),
    ({"type": None, "id": "x"}, False),
    ({"Type": "Item_Reference", "ID": "x"}, False),
    ({"type": "image_generation_call", "id": "x"}, False),
    ({"type": "web_search_call", "id": "x", "status": "completed"}, False),
    ({"type": "message", "id": "x", "role": "assistant", "content": []}, False),
    ({"type": "reasoning", "id": "x", "summary": []}, False),
    ({"type": "reasoning", "id": "x", "summary": [{"type": "summary_text", "text": "t"}]}, True),
    ({"type": "reasoning", "id": "x", "summary": [], "encrypted_content": "e"}, None),
    ({"type": "reasoning", "id": "x", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}, None),
    ({"type": "message", "id": "x", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]}, None),
    ({"type": "function_call", "id": "x", "call_id": "c", "name": "f", "arguments": "{}"}, None),
    ({"role": "user", "content": "hi"}, None),
]


@table_rows(("item", "reported"), ITEMS)
def test_an_item_that_is_hardly_more_than_its_id_names_what_is_kept(
    item: dict[str, Any], reported: bool | None
) -> None:
    found = list_stored_references({"model": "m", "input": [{"role": "user", "content": "hi"}, item]}, items=True)
    assert [(one.id, one.param, one.has_content) for one in found] == (
        [] if reported is None else [("x", "input[1]", reported)]
    )


def test_what_an_earlier_answer_or_the_client_says_itself_names_nothing() -> None:
    schema = {"type": "object", "properties": {"file_id": {"type": "string"}, "container": {"type": "string"}}}
    annotations = [{"type": "file_citation", "file_id": "x"}, {"type": "container_file_citation", "container_id": "x"}]
    for body in (
        with_content({"type": "tool_use", "id": "t", "name": "f", "input": {"file_id": "x"}}, role="assistant"),
        with_content(
            {"type": "code_execution_tool_result", "content": {"content": [{"file_id": "x"}]}}, role="assistant"
        ),
        with_content({"type": "image_url", "image_url": {"url": "https://example.com/files/a.png"}}),
        {
            "input": [
                {"role": "assistant", "content": [{"type": "output_text", "text": "t", "annotations": annotations}]}
            ]
        },
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
        {"tools": [{"name": "f", "input_schema": schema}], "metadata": {"file_id": "x"}},
        {"client_metadata": {"thread_id": "x", "session_id": "y"}, "input": "hi"},
        {"text": {"format": {"type": "json_schema", "schema": schema}}, "prompt": "hi", "voice": "alloy"},
        {"audio": {"voice": "alloy", "format": "mp3"}, "file_id": None, "container": {"type": "auto"}},
        {"contents": [{"parts": [{"functionCall": {"name": "f", "args": {"fileUri": "files/a"}}}]}]},
    ):
        assert list_stored_references(body, items=True) == []
    asked = {"type": "mcp_approval_request", "id": "r", "server_label": "s", "name": "f", "arguments": "{}"}
    approved = {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}
    assert list_stored_references({"input": [asked, approved]}, items=True) == []


def test_ids_of_an_answer_are_those_that_a_later_request_may_name() -> None:
    output = [
        {"type": "reasoning", "id": "rs_1", "encrypted_content": "e"},
        {"type": "reasoning", "id": "rs_2", "summary": []},
        {"type": "code_interpreter_call", "id": "ci_1", "container_id": "cntr_1"},
        {"type": "message", "id": "msg_1"},
        {"type": "mcp_approval_request", "id": "mcpr_1"},
        None,
        {"id": 5},
    ]
    assert list_created_ids({"output": output}, keeps_answer=True) == [
        "rs_1",
        "rs_2",
        "ci_1",
        "cntr_1",
        "msg_1",
        "mcpr_1",
    ]
    assert list_created_ids({"output": output}, keeps_answer=False) == ["rs_2", "cntr_1", "mcpr_1"]
    assert list_created_ids({"output": "none"}, keeps_answer=True) == []


@table_rows("item_id", [None, ["msg_1"], {"id": "msg_1"}, 5])
def test_a_reference_without_an_id_that_is_a_text_is_known_to_nobody(item_id: Any) -> None:
    found = list_stored_references(
        {"input": [{"type": "item_reference", "id": item_id, "item_id": "msg_1"}]}, items=True
    )
    assert [(one.field, one.param, one.has_content) for one in found] == [("item_reference", "input[0]", False)]


@table_rows(
    "part",
    [
        {"type": "input_file", "file_url": "file:///etc/passwd"},
        {"type": "input_image", "image_url": "OSS://dashscope/x.png"},
        {"image": "oss://dashscope/x.png"},
        {"video": ["https://up/1.png", "oss://dashscope/2.png"]},
    ],
)
def test_an_address_that_only_the_provider_can_open_names_what_it_keeps(part: dict[str, Any]) -> None:
    (found,) = list_stored_references(with_content(part))
    assert (found.field, "://" in found.id) == ("file_uri", True)
