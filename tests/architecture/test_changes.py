"""The fragments of the changelog: one with an unknown ending would be left out of it without a word."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_fragment_has_a_heading_and_a_text() -> None:
    types = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
    endings = {each["directory"] for each in types}
    fragments = [path for path in (ROOT / "scripts/changes").glob("*.md") if path.name != "README.md"]
    for path in fragments:
        name, _, ending = path.stem.rpartition(".")
        assert ending in endings, path
        assert name.startswith("+"), path
        assert path.read_text().strip(), path
