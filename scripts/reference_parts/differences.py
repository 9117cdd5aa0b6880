"""docs/reference/differences.md: what the gateway answers otherwise than OpenAI and Anthropic."""

from collections.abc import Iterator

from scripts.reference_parts.markdown import join_blocks, write_table, write_text
from scripts.suite_runs.differences import Difference, Table, list_calls, load_table
from scripts.suite_runs.suites import SUITES

_INTRODUCTION = """\
# Differences from OpenAI and Anthropic

This page is generated from `scripts/suite_runs/differences.toml`.

The packages `openai` and `anthropic` come with tests of every call. `make test-suites` runs these tests twice: against
a mock of the provider, and through a gateway whose only channel is that mock, and allows every field (`allow_fields`).
By default a gateway also answers ids that it does not know, such as that of a `conversation`, with 404.
The mock of OpenAI is made from its OpenAPI document, the mock of Anthropic from the types of its library. Both refuse
requests that do not fit.

The tests name files, batches, uploads, videos and responses that do not exist. For the gateway, such an object is made
before the request. The tests themselves are not changed. Every test that passes against the mock and not through the
gateway is explained below: the run fails if one is missing here, or if one that is listed passes.

Some tests send what the gateway refuses. They run a third time, with requests in which only that is corrected: the
model is added, a 0 is raised, an invented name is left out. Where the last column says so, they then pass.
"""


def build_differences() -> str:
    """Build the page."""
    table = load_table()
    return join_blocks([_INTRODUCTION, _write_passes(table), *_write_groups(table)])


def _write_passes(table: Table) -> str:
    rows = [(f"`{one.package}` {one.version}", *map(_write_count, table.passes[one.package])) for one in SUITES]
    return write_table(("Tests of", "Pass against the mock", "Through the gateway", "With corrected requests"), rows)


def _write_count(count: int) -> str:
    return f"{count:,}"


def _write_groups(table: Table) -> Iterator[str]:
    for group, title in table.groups.items():
        found = [one for one in table.differences if one.group == group]
        yield f"## {title}"
        yield write_table(("Package", "Calls", "Reason", "Pass if corrected"), map(_write_row, found))


def _write_row(difference: Difference) -> tuple[str, ...]:
    calls = ", ".join(
        f"`{path.replace('/', '.')}.{name}`" for path, names in list_calls(difference.calls).items() for name in names
    )
    return f"`{difference.suite}`", calls, write_text(difference.reason), "yes" if difference.corrected else ""
