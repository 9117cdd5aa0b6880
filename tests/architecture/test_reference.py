"""The generated pages of the documentation are what the program says today."""

import pytest

from scripts.build_reference import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_current(name: str) -> None:
    current = (FOLDER / name).read_text() == PAGES[name]()
    assert current, f"docs/reference/{name} is not current: run 'make reference', and read the diff"


def test_every_page_of_the_folder_is_generated() -> None:
    assert {path.name for path in FOLDER.iterdir()} == PAGES.keys()
