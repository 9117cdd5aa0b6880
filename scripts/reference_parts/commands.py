"""docs/reference/commands.md: every command with its options, from click."""

import inspect
import re
from collections.abc import Iterator

import click

from gateway.cli.main import main
from scripts.reference_parts.markdown import join_blocks, write_code, write_table, write_text

_AS_IS = "\b\n"
"""Click's mark of a paragraph that is not wrapped."""
COMMON = frozenset({"--data", "--config", "--json"})
"""Options of nearly every command: the page describes them once."""
_CHOICES = re.compile(r"(.+) \[(.+\|.+)\]")
"""An option's names, and its values between bars."""
_EXAMPLES = "Examples:"
_INTRODUCTION = """\
# Commands

This page is generated from the program. Every command prints the same with `--help`.

Commands that work on a data folder also take these options, before or after the name of the command:
"""


def build_commands() -> str:
    """Build the page."""
    blocks = [_INTRODUCTION, _build_options([*_list_common()]), *_build_command(main, "gateway", None)]
    return join_blocks(blocks)


def _list_common() -> Iterator[click.Option]:
    keys = main.commands["keys"]
    listing = keys.commands["list"] if isinstance(keys, click.Group) else keys
    for option in listing.params:
        if isinstance(option, click.Option) and COMMON & {*option.opts}:
            yield option


def _build_options(options: list[click.Option]) -> str:
    context = click.Context(main, info_name="gateway")
    return write_table(("Option", "Description"), (_build_option(option, context) for option in options))


def _build_command(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"## {context.command_path}"
    yield write_code(f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}", "text")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield _build_paragraph(paragraph)
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    options = [option for option in options if not COMMON & {*option.opts}]
    if options:
        yield _build_options(options)
    if isinstance(command, click.Group):
        for inner_name, inner in sorted(command.commands.items()):
            if not inner.hidden:
                yield from _build_command(inner, inner_name, context)


def _build_paragraph(text: str) -> str:
    if not text.startswith(_AS_IS):
        return write_text(" ".join(text.split()))
    lines = text.removeprefix(_AS_IS).splitlines()
    if lines[0].strip() == _EXAMPLES:
        return f"Examples:\n\n{write_code(_join_lines(lines[1:]), 'sh')}"
    return write_code(_join_lines(lines), "text")


def _join_lines(lines: list[str]) -> str:
    return "\n".join(line.removeprefix("  ") for line in lines)


def _build_option(option: click.Option, context: click.Context) -> tuple[str, str]:
    names, words = option.get_help_record(context) or ("", "")
    written = f"`{names}`"
    if choices := _CHOICES.fullmatch(names):  # mkdocs shows the backslash of an escaped bar in code
        written = f"`{choices[1]}` {', '.join(f'`{choice}`' for choice in choices[2].split('|'))}"
    return written, write_text(" ".join(words.split()))
