"""The site that mkdocs builds: without a warning, and with nothing from elsewhere."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gateway.server.help.pages import parse_page
from tests.support.documentation import DOCS, ROOT, list_pages

ELSEWHERE = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)="?((?:https?:)?//[^"\s>]+)')

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("material") is None:
        why = "no mkdocs-material: pip install '.[docs]'"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_built_and_takes_nothing_from_elsewhere(site: Path) -> None:
    for path in list_pages():
        text = (site / path.relative_to(DOCS).with_suffix(".html")).read_text()
        assert ELSEWHERE.findall(text) == [], path
        assert "fonts.googleapis" not in text
        assert "\\|" not in text[text.index("<article") : text.index("</article>")], f"{path}: a bar in code in a table"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?https?:", sheet.read_text()), sheet


def test_what_is_from_elsewhere_would_be_found() -> None:
    assert ELSEWHERE.findall('<script defer src="https://cdn.example.com/x.js"></script>')
    assert not ELSEWHERE.findall('<a href="https://example.com/">x</a><link rel="icon" href="assets/x.png">')


def test_the_ids_of_headings_are_those_of_the_help_pages(site: Path) -> None:
    for path in list_pages():
        built = (site / path.relative_to(DOCS).with_suffix(".html")).read_text()
        article = built[built.index("<article") : built.index("</article>")]
        ours = re.findall(r'<h\d id="([^"]+)"', parse_page("x", path.read_text()).body)
        assert re.findall(r'<h\d id="([^"]+)"', article) == ours, path
