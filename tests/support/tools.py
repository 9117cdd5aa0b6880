"""Programs that tests run and that are not Python packages."""

import os
import shutil

import pytest


def find_tool(name: str, package: str) -> str:
    """Where a program is. Skips the test if it is missing; in CI that is a failure."""
    if found := shutil.which(name):
        return found
    why = f"no {name}: apt-get install {package}"
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
