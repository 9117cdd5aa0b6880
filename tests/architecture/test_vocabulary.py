"""The words of the code: names, docstrings and comments use the terms of the field, one word for one thing."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.source import Module, list_nodes, parse, read_modules

ROOT = Path(__file__).parents[2]
REFUSED = {
    "purse": "balance",
    "purses": "balances",
    "whoever": "the actor: the client, the caller, the operator",
    "whomever": "the actor",
    "nobody": "the actor, or 'no client', 'no channel'",
    "somebody": "the actor",
    "anybody": "the actor, or 'any client'",
    "told": "reported, sent, given",
    "said": "reported, named, given; as a variable: fields, values, body",
    "hang": "register",
    "cinema": "videos",
    "lobby": "sign-in",
    "ward": "monitoring",
    "house": "gateway",
    "rooms": "services",
    "roof": "application",
    "cellar": "storage",
    "studio": "images",
    "dialect": "API format",
    "dialects": "API formats",
    "painter": "image backend",
    "painters": "image backends",
    "painting": "generating an image",
    "filmmaker": "video backend",
    "filmmakers": "video backends",
    "footage": "video content",
    "teller": "webhook sender",
    "reception": "sessions",
    "outlet": "client stream",
    "pulse": "stream timeouts",
    "patience": "timeout",
    "switchboard": "load balancer",
    "passphrases": "passwords",
    "picture": "image",
    "pictures": "images",
    "parcel": "object",
    "nouns": "types",
    "dice": "random number generator",
    "blame": "failure scope",
    "fleet": "channels",
    "convention": "the OpenAI API format",
    "stopped_up": "full",
    "lead_to": "attach_client",
    "errand": "request",
    "manner": "mode",
    "tariff": "pricing",
    "lookout": "collector of conditions",
    "dearest": "most expensive",
    "naming": "identity",
    "seat": "permit holder",
}
"""A word that the code does not use, and what it uses instead."""
PHRASES = {"but for": "except", "as it lies": "unchanged", "all the same": "nevertheless, or nothing"}
ALLOWED = {
    ("server/admin/billing.py", "purses"),  # a field of an answer, which keeps its name
    ("storage/", "dialect"),
    ("storage/", "dialects"),
    ("support/statement_cache.py", "dialect"),
    ("formats/", "studio"),
    ("providers/", "studio"),
}
"""Words of SQLAlchemy, and names of products (LM Studio, Model Studio), by the beginning of a path."""
NAMES_ONLY = {"naming"}
"""Words with another, plain sense in prose."""
FREE_IN_TESTS = frozenset(
    [
        "pulse",
        "painting",
        "convention",
        "passphrases",
        "patience",
        "hang",
        "studio",
        "lobby",
        "dice",
        "rooms",
        "nouns",
        "switchboard",
    ]
)
"""Words that the gateway has replaced by terms, and that name something else in tests: a dice throws dice."""
_WORD = re.compile(r"[A-Za-z_]+")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def split_name(name: str) -> set[str]:
    """The words of an identifier, and the identifier itself, in lower case."""
    return {name.lower(), *(word.lower() for part in name.split("_") for word in _CAMEL.findall(part))}


def list_identifiers(module: Module) -> Iterator[tuple[int, str]]:
    """Every name that the module defines, with its line; names of other libraries are theirs."""
    for node in list_nodes(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def list_prose(module: Module) -> Iterator[tuple[int, str]]:
    """Every docstring (also of attributes) and comment, with its first line. What stands in ``code`` is left out."""
    for node in list_nodes(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, re.sub(r"``[^`]*``", "", node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def list_words(module: Module) -> set[str]:
    """The words that the module may not use."""
    free = FREE_IN_TESTS if module.where.startswith(("tests/", "scripts/")) else frozenset()
    return {
        word
        for word in REFUSED
        if word not in free and not any(module.where.startswith(at) and word == one for at, one in ALLOWED)
    }


def find_refused_names(module: Module) -> Iterator[str]:
    words = list_words(module)
    for line, name in list_identifiers(module):
        for word in sorted(split_name(name) & words):
            yield f"{module.where}:{line} name {name!r}: not {word!r} but {REFUSED[word]}"


def find_refused(module: Module) -> Iterator[str]:
    """Every refused word of a module, with what to write instead."""
    words = list_words(module)
    yield from find_refused_names(module)
    for line, text in list_prose(module):
        for word in sorted({found.lower() for found in _WORD.findall(text)} & words - NAMES_ONLY):
            yield f"{module.where}:{line} prose: not {word!r} but {REFUSED[word]}"
        flat = " ".join(text.lower().split())
        for phrase, better in PHRASES.items():
            if re.search(rf"\b{phrase}\b", flat):
                yield f"{module.where}:{line} prose: not {phrase!r} but {better}"


def test_every_module_uses_the_terms_of_the_field() -> None:
    found = [line for module in read_modules() for line in find_refused(module)]
    assert not found, "\n".join(found)


def test_every_name_in_tests_and_scripts_uses_the_terms_of_the_field() -> None:
    """The names of test functions are sentences, and free."""
    files = [path for folder in ("tests", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 500
    refused = re.compile("|".join(REFUSED.keys() - FREE_IN_TESTS), re.IGNORECASE)
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files}
    modules = [parse(where, text) for where, text in texts.items() if refused.search(text)]  # few have one at all
    found = [line for module in modules for line in find_refused_names(module) if " name 'test_" not in line]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "purse = 1",
        "def find_purse(): ...",
        "class SoundPainter: ...",
        "def f(the_purse): ...",
        '"""Whoever asks."""',
        "# all but for one\nx = 1",
        'x = 1\n"""What was told."""',
    ],
)
def test_a_refused_word_is_found(text: str) -> None:
    assert list(find_refused(parse("domain/x.py", text)))


@pytest.mark.parametrize("text", ["x = y.dialect", 'x = "whoever"', '"""``purse`` is a field."""', "balance = 1"])
def test_other_words_are_left_alone(text: str) -> None:
    assert not list(find_refused(parse("domain/x.py", text)))
