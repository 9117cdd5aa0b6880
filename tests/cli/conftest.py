"""Fixtures of the command line's tests."""

from pathlib import Path

import pytest

from tests.support.gateway import furnish, make_template


@pytest.fixture
async def data(tmp_path: Path, template_path: Path) -> Path:
    """A data folder with a database, which no gateway has open."""
    if not template_path.exists():
        await make_template(template_path)
    home = tmp_path / "data"
    home.mkdir(mode=0o700)
    await furnish(home, template_path, declared=False)
    return home
