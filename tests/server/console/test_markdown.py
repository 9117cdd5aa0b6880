"""The playground's renderer of Markdown: what it makes of an answer, and that no answer holds the browser."""

import functools
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import gateway.server.console
from tests.support.table_rows import table_rows

SCRIPT = Path(gateway.server.console.__file__).parent / "static" / "markdown.js"
_RUN = """
const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const print = (part) => (typeof part === "string" ? escape(part) : part.html());
class Element {
  constructor(name) { this.localName = name; this.childNodes = []; }
  append(...parts) { this.childNodes.push(...parts); }
  html() {
    const href = this.href ? ` href="${this.href}"` : "";
    return `<${this.localName}${href}>${this.childNodes.map(print).join("")}</${this.localName}>`;
  }
}
globalThis.document = { createElement: (name) => new Element(name) };
const { renderMarkdown } = await import(process.argv[1]);
let input = "";
for await (const part of process.stdin) input += part;
const render = (text) => renderMarkdown(text).map(print).join("");
const answer = process.argv[2] === "sizes" ? (text) => render(text).length : render;
for (const text of JSON.parse(input)) console.log(JSON.stringify(answer(text)));
"""
LONG = 60_000

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no node: https://nodejs.org")


def run(what: str, texts: Sequence[str]) -> list[Any]:
    """Return the HTML of each text, or its size. A renderer that is not linear is stopped by the test's time limit."""
    command = ["node", "--input-type=module", "-e", _RUN, SCRIPT.as_uri(), what]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def render(*texts: str) -> list[str]:
    return run("html", texts)


INLINE = {
    "plain": "plain",
    "a **b c** d": "a <strong>b c</strong> d",
    "*a* and _b_": "<em>a</em> and <em>b</em>",
    "~~a b~~": "<del>a b</del>",
    "**a *b* c**": "<strong>a <em>b</em> c</strong>",
    "snake_case_name and 2 * 3 * 4": "snake_case_name and 2 * 3 * 4",
    "`a*b*` ``c`d``": "<code>a*b*</code> <code>c`d</code>",
    "** a** ~~ b~~ * c*": "** a** ~~ b~~ * c*",
    "`open **a**": "`open <strong>a</strong>",
    "[a **b**](https://x.example/y) [c](javascript:1) [d]": (
        '<a href="https://x.example/y">a <strong>b</strong></a> [c](javascript:1) [d]'
    ),
    "<b>": "&lt;b>",
}
BLOCKS = {
    "# a #": "<h3>a</h3>",
    "### a#b ##": "<h5>a#b</h5>",
    "- - -": "<hr></hr>",
    "***": "<hr></hr>",
    "|a|b|\n|-|:-:|\n|1|2|": (
        "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"
    ),
    "> a\n> b": "<blockquote><p>a<br></br>b</p></blockquote>",
    "- a\n- b": "<ul><li>a</li><li>b</li></ul>",
    "~~~\na\n~~~": "<pre><code>a</code></pre>",
}


def test_marks_become_elements() -> None:
    assert render(*INLINE) == [f"<p>{shown}</p>" for shown in INLINE.values()]
    assert render(*BLOCKS) == list(BLOCKS.values())


UNITS = [
    "~~", "a~~", "~~a ", " ~~a", "**a ", "*a ", "* a", "_a ", "`", "`a ``b ", "[", "[a](", "[a](b ", "](", "***",
    "_*",
    "*_a", "**~~a ", "> ", ">", "- ", "1. ", "#", "# ", "# #", "|", "| |", "|-", ":-", " ", "\n", "\n- ", "\n> a",
    "a\n", "*\n", "`\n", "[\n", "`a` ", "![", "![a](", "<", "<b>", "| - |\n", "  - a\n- b\n", "\r", "\u2028",
    "|a\n|-\n", "```", "~~~ ", "\\", "- a\n  ",
]  # fmt: skip


@functools.cache
def measure_runs() -> dict[str, list[int]]:
    """Return the sizes of what becomes of long runs of each unit; all of them in one process."""
    texts = [text for unit in UNITS for text in make_runs(unit)]
    sizes = run("sizes", texts)
    each = len(texts) // len(UNITS)
    return {unit: sizes[each * index : each * (index + 1)] for index, unit in enumerate(UNITS)}


def make_runs(unit: str) -> list[str]:
    run = unit * (LONG // len(unit))
    table = f"|{run}\n|-|\n" + "|\n" * 5_000
    return [run, f"x{run}", f"# {run}x", f"|a|\n|-|\n{run}", table, f"{' ' * LONG}{run[:9]}"]


@table_rows("unit", UNITS)
def test_no_run_of_marks_holds_the_browser(unit: str) -> None:
    assert all(size < 30 * LONG for size in measure_runs()[unit])


@table_rows("end", ["\r", "\u2028", "\u2029", "\r\n"])
def test_no_end_of_a_line_is_searched_for_from_every_space(end: str) -> None:
    spaces = " " * LONG
    shown = render(f"- {spaces}x{end}y", f"# {spaces}x{end}y", f"> {spaces}x{end}y", f"1. a{end}   - {spaces}x{end}")
    assert shown[1] == "<h3>x</h3><p>y</p>"
