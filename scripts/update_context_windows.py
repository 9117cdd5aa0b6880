"""Writes gateway/domain/context_windows.py from the models that the genai-prices package carries; no network is asked.

    .venv/bin/python -m scripts.update_context_windows           # the context windows of today
    .venv/bin/python -m scripts.update_context_windows --check   # exit code 1 if the file differs

Where providers of one model have different context windows, the longest counts: the table is an upper bound.
"""

import argparse
import collections
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from genai_prices import types
from genai_prices.data import providers

from gateway.domain.context_windows import shorten_name
from scripts.update_prices import SOURCE, read_cloud_names, read_names

FILE = Path(__file__).resolve().parent.parent / "gateway" / "domain" / "context_windows.py"
_LONGER = {"deepseek-chat*": 1_000_000, "deepseek-reasoner*": 1_000_000}
"""Names that have come to stand for a model with a longer window (api-docs.deepseek.com/quick_start/pricing)."""
_BEGIN, _END = '_TABLE = """\\\n', '"""\n'


def list_windows() -> dict[str, int]:
    """Return the longest context window of each model, in tokens, by its short name or the beginning of one."""
    windows: dict[str, int] = collections.defaultdict(int)
    for provider in providers:
        for model in provider.models:
            for name in _list_names(model) if model.context_window else ():
                short = shorten_name(name.replace("[0-9]*", "*"))
                windows[short] = max(windows[short], model.context_window or 0)
    started = tuple(start.removesuffix("*") for start in _LONGER)
    windows = {name: tokens for name, tokens in windows.items() if not name.startswith(started)} | _LONGER
    beginnings = {name: tokens for name, tokens in windows.items() if name.endswith("*")}
    return {name: tokens for name, tokens in windows.items() if not _follows(name, tokens, beginnings)}


def _list_names(model: types.ModelInfo) -> Iterator[str]:
    yield from (*read_names(model.match), *read_cloud_names(model), model.id)


def _follows(name: str, tokens: int, beginnings: dict[str, int]) -> bool:
    """Return whether a shorter beginning of the name has the same context window."""
    found = [start for start in beginnings if start != name and name.startswith(start[:-1])]
    return bool(found) and beginnings[max(found, key=len)] == tokens


def write_table(windows: dict[str, int]) -> str:
    """Return the table: a paragraph for each context window."""
    names = collections.defaultdict(list)
    for name, tokens in sorted(windows.items()):
        names[tokens].append(name)
    rows = (f"{tokens} {' '.join(names[tokens])}" for tokens in sorted(names))
    lines = (textwrap.wrap(row, 120, subsequent_indent=" ", break_on_hyphens=False) for row in rows)
    return "\n".join(line for row in lines for line in row) + "\n"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the file would change")
    options = parser.parse_args()
    old = FILE.read_text()
    head, rest = old.split(_BEGIN, 1)
    new = head + _BEGIN + write_table(list_windows()) + _END + rest.split(_END, 1)[1]
    if options.check:
        sys.exit(None if new == old else f"{FILE} is not what this writes from {SOURCE}")
    FILE.write_text(new)
    print(f"{FILE}: {len(list_windows())} names from {SOURCE}")


if __name__ == "__main__":
    main()
