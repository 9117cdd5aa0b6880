"""docs/reference/api.md: the public API, and a list of the admin API's operations, from the OpenAPI document."""

from collections.abc import Iterator, Sequence

from gateway.server.openapi.docs_page import ADDRESS, Chapter, DocsBody, DocsOperation, list_chapters
from gateway.server.openapi.document import get_document
from gateway.server.openapi.error_responses import map_codes, name_phrase
from gateway.server.openapi.schema_table import SchemaRow
from scripts.reference_parts.markdown import join_blocks, write_code, write_table, write_text

_DEEPEST = 2
"""Levels of fields that the page shows; ``/docs`` shows all of them."""
_ADMIN = "admin-"
_LOCAL = "http://127.0.0.1:8080"
_INTRODUCTION = """\
# API

This page is generated from the OpenAPI document of the gateway, `GET /openapi.json`. The page `/docs` of your gateway
shows the same with every nested field. In the examples `GATEWAY_KEY` is an API key.
"""
_ADMIN_INTRODUCTION = """\
## Admin API

The console and the commands use this API. Send the admin token of the data folder (`admin.token`) as
`Authorization: Bearer …`, or a console session. `/docs` has its fields.
"""


def build_api() -> str:
    """Build the page."""
    document = get_document()
    chapters = list_chapters(document)
    public = [chapter for chapter in chapters if not chapter.id.startswith(_ADMIN)]
    admin = [chapter for chapter in chapters if chapter.id.startswith(_ADMIN)]
    about = [write_text(paragraph) for paragraph in document["info"]["description"].split("\n\n")]
    blocks = [_INTRODUCTION, *about]
    for chapter in public:
        blocks += _build_chapter(chapter)
    return join_blocks([*blocks, _ADMIN_INTRODUCTION, *_build_admin(admin)])


def _build_chapter(chapter: Chapter) -> Iterator[str]:
    yield f"## {chapter.title}"
    yield _write_prose(chapter.about)
    for operation in chapter.operations:
        yield from _build_operation(operation)


def _build_operation(operation: DocsOperation) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}"
    yield f"{write_text(operation.summary)} ({operation.rights})"
    yield _write_prose(operation.about)
    yield write_code(operation.example.replace(ADDRESS, _LOCAL), "sh")
    if operation.parameters:
        yield "Parameters:"
        yield _write_rows(operation.parameters)
    for body in operation.bodies:
        yield from _build_body("Request body", body)
    for answer in operation.answers:
        yield f"Response {answer.status}: {write_text(answer.about)}"
        for body in answer.bodies:
            yield from _build_body("Response body", body, required=False)
    if operation.faults:
        yield f"Errors: {', '.join(map(_link_status, operation.faults))}."


def _link_status(status: str) -> str:
    if int(status) not in map_codes():
        return status
    return f"[{status}](errors.md#{status}-{name_phrase(int(status)).lower().replace(' ', '-')})"


def _build_body(title: str, body: DocsBody, *, required: bool = True) -> Iterator[str]:
    yield f"{title}, `{body.media_type}` ({write_text(body.kind)}):"
    yield _write_prose(body.about)
    if body.rows:
        yield _write_rows(body.rows, required=required)


def _write_rows(rows: Sequence[SchemaRow], *, required: bool = True) -> str:
    """Return a table of fields. Only of requests it says which are required."""
    return write_table(
        ("Field", "Type", "Description"),
        (
            (f"`{prefix}{row.name}`", _write_type(row, required=required), write_text(row.about))
            for prefix, row in _list_rows(rows, "", _DEEPEST)
        ),
    )


def _write_type(row: SchemaRow, *, required: bool) -> str:
    needed = "; required" if row.needed and required else ""
    default = f"; default {row.default}" if row.default else ""
    return write_text(f"{row.kind}{needed}{default}")


def _list_rows(rows: Sequence[SchemaRow], prefix: str, depth: int) -> Iterator[tuple[str, SchemaRow]]:
    for row in rows:
        yield prefix, row
        if depth > 1:
            yield from _list_rows(row.rows, f"{prefix}{row.name}.", depth - 1)


def _build_admin(chapters: Sequence[Chapter]) -> Iterator[str]:
    for chapter in chapters:
        yield f"### Admin: {chapter.title}"
        yield write_table(
            ("Operation", "Rights", "Description"),
            (
                (f"`{operation.method} {operation.path}`", operation.rights, write_text(operation.summary))
                for operation in chapter.operations
            ),
        )


def _write_prose(text: str) -> str:
    return "\n\n".join(write_text(" ".join(paragraph.split())) for paragraph in text.split("\n\n"))
