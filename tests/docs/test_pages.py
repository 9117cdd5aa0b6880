"""What the pages of docs/ say is true as far as a program can see: links, commands, settings, code."""

import ast
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from gateway import __version__
from gateway.config.loader import read_declared_config
from gateway.error_status import STATUS
from gateway.server.help.pages import parse_page
from scripts.reference_parts.errors import FIXES
from scripts.screenshot import note_version, read_version
from tests.support import documentation
from tests.support.table_rows import table_rows

BLOCKS = list(documentation.list_blocks())
LANGUAGES = {"sh", "toml", "json", "python", "js", "yaml", "text"}
LOCAL = re.compile(r"(?!https?:)[^#]*")
ADDRESS, SECRET = "https://example.com/hook", "sk-0123456789abcdef0123456789abcdef"
"""What examples take from the environment."""
FILE = re.compile(r"(?:config|deploy|scripts)/[\w./-]+|(?:compose\.yaml|Dockerfile|Makefile)\Z")


def pick(language: str) -> list[documentation.CodeBlock]:
    return [block for block in BLOCKS if block.language == language]


def test_every_page_is_in_the_menu_once() -> None:
    nav = yaml.safe_load((documentation.ROOT / "mkdocs.yml").read_text())["nav"]
    listed = [name for entry in nav for names in entry.values() for name in names]
    assert sorted(listed) == [path.relative_to(documentation.DOCS).as_posix() for path in documentation.list_pages()]


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    wrong = []
    bodies: dict[Path, str] = {}
    for path, link in documentation.list_links():
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.is_file() or target.suffix != ".md":
            wrong.append(f"{path.name}: {link}: no such page")
        elif anchor:
            if target not in bodies:
                bodies[target] = parse_page("x", target.read_text()).body
            if f'id="{anchor}"' not in bodies[target]:
                wrong.append(f"{path.name}: {link}: no such heading")
    assert not wrong, "\n".join(wrong)


def test_a_page_has_one_title_and_skips_no_level() -> None:
    for path in documentation.list_pages():
        levels = [int(level) for level in re.findall(r"<h(\d)", parse_page("x", path.read_text()).body)]
        assert levels[0] == 1, path
        assert levels.count(1) == 1, path
        assert all(lower - upper <= 1 for upper, lower in pairwise(levels)), path


def test_every_block_has_a_language_that_is_checked_or_is_foreign() -> None:
    assert [block.where for block in BLOCKS if block.language not in LANGUAGES] == []
    assert {block.language for block in BLOCKS} >= {"sh", "toml", "json", "python"}


@pytest.mark.parametrize("block", pick("toml"), ids=lambda block: block.where)
def test_toml_is_valid_settings(block: documentation.CodeBlock, tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(block.text)
    for name in ("words.txt", "fullchain.pem", "privkey.pem"):
        (tmp_path / name).write_text("word\n")
    names = re.findall(r"\$\{(\w+)\}", block.text)
    read_declared_config(path, {name: ADDRESS if name.endswith("_URL") else SECRET for name in names})


@table_rows("block", pick("json"), ids=lambda block: block.where)
def test_json_parses(block: documentation.CodeBlock) -> None:
    json.loads(block.text)


@table_rows("block", pick("python"), ids=lambda block: block.where)
def test_python_compiles(block: documentation.CodeBlock) -> None:
    ast.parse(block.text)


def test_yaml_parses() -> None:
    for block in pick("yaml"):
        assert list(yaml.safe_load_all(block.text)), block.where


def test_every_command_is_valid() -> None:
    wrong = []
    commands = [(block.where, each) for block in pick("sh") for each in documentation.list_commands(block.text)]
    for where, arguments in commands:
        if problem := documentation.find_command_problem(arguments):
            wrong.append(f"{where}: gateway {' '.join(arguments)}: {problem}")
    assert not wrong, "\n".join(wrong)
    assert len(commands) > 100


def test_every_command_in_running_text_exists() -> None:
    found = [
        (where, each) for where, code in documentation.list_code_spans() for each in documentation.list_commands(code)
    ]
    problems = ((where, each, documentation.find_command_problem(each, whole=False)) for where, each in found)
    wrong = [f"{where}: gateway {' '.join(each)}: {problem}" for where, each, problem in problems if problem]
    assert not wrong, "\n".join(wrong)


@table_rows(
    ("arguments", "text"),
    [
        (["keys", "forge"], "No such command"),
        (["keys", "create", "--quota", "5"], "No such option"),
        (["requests", "--limit", "0"], "0 is not in the range"),
        (["keys", "show"], "Missing"),
    ],
)
def test_an_invalid_command_is_found(arguments: list[str], text: str) -> None:
    assert text in documentation.find_command_problem(arguments)


@table_rows(
    ("script", "found"),
    [
        ("gateway usage --by model  # cost", [["usage", "--by", "model"]]),
        ("A=1 /opt/gateway/bin/gateway health && gateway \\\n  verify", [["health"], ["verify"]]),
        ("curl https://gateway/x | gateway --help > file", [["--help"]]),
        ("docker exec gateway ls", []),
    ],
)
def test_commands_are_found_in_a_script(script: str, found: list[list[str]]) -> None:
    assert list(documentation.list_commands(script)) == found


def test_files_that_pages_name_exist() -> None:
    named = {(where, code) for where, code in documentation.list_code_spans() if FILE.match(code)}
    assert [each for each in sorted(named) if not (documentation.ROOT / each[1]).exists()] == []


def test_every_error_code_has_its_fix() -> None:
    assert FIXES.keys() == STATUS.keys()


def list_comparisons(text: str) -> list[list[str]]:
    """The cells of the tables that compare this gateway with others."""
    part = text[text.index("| | Model Gateway | LiteLLM") :].partition("\n## Providers")[0]
    return [line.split("|") for line in part.splitlines() if line.startswith("|")]


def test_the_comparison_is_the_one_of_the_readme() -> None:
    readme, page = (documentation.ROOT / "README.md").read_text(), (documentation.DOCS / "comparison.md").read_text()
    assert list_comparisons(page) == list_comparisons(readme)
    assert len(list_comparisons(page)) > 6


def test_the_readmes_picture_is_of_this_version() -> None:
    """``make picture`` takes it."""
    image = (documentation.ROOT / "scripts" / "console.png").read_bytes()
    assert read_version(image) == __version__
    assert read_version(image[:33] + image[image.index(b"IDAT") - 4 :]) == ""
    assert read_version(note_version(image[:33] + image[image.index(b"IDAT") - 4 :])) == __version__
