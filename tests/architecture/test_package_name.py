"""No command installs the gateway by its bare name: it is in no index, and another package may take that name there."""

import re
from pathlib import Path

import pytest

from gateway.installation import format_install_command

ROOT = Path(__file__).resolve().parents[2]
BARE = re.compile(
    r"\b(?:pip3?|pipx|uvx?)\b[^\n`]{0,80}?(?<![\w./-])model[-_.]gateway(?![\w.-]*\.whl)|model-gateway(?:\[[a-z0-9,]+\]|[=~<>]=)",
    re.IGNORECASE,
)
KINDS = frozenset({".py", ".md", ".toml", ".html", ".js", ".po", ".yaml", ".yml", ".service", ".sh", ".txt", ""})


def test_no_text_names_the_package_of_an_index() -> None:
    roots = [
        ROOT / name for name in ("gateway", "docs", "config", "deploy", "README.md", "CONTRIBUTING.md", "Dockerfile")
    ]
    paths = [path for root in roots for path in (root.rglob("*") if root.is_dir() else [root]) if path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}: {hit[0]}"
        for path in paths
        if path.suffix in KINDS and "__pycache__" not in path.parts
        for hit in BARE.finditer(path.read_text("utf-8", "replace"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("pip install model-gateway", True), ("pip install 'model-gateway[sso]'", True), ("model-gateway[sso]", True),
        ("uv tool install model-gateway", True), ("pipx install model_gateway", True), ("model-gateway==0.7.0", True),
        ("pip install '.[sso]'", False), ("pip install ./model_gateway-0.8.0-py3-none-any.whl", False),
        ("pip install '/src/model-gateway[sso]'", True), ("docker run model-gateway", False),
    ],
)  # fmt: skip
def test_a_bare_name_is_found(text: str, bare: bool) -> None:
    assert (BARE.search(text) is not None) is bare


def test_the_command_for_an_extra_names_this_checkout() -> None:
    assert format_install_command("sso") == f"pip install '{ROOT}[sso]'"
