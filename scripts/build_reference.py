"""Write the generated pages of the documentation into docs/reference/; `make reference` runs this."""

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference_parts.api import build_api
from scripts.reference_parts.commands import build_commands
from scripts.reference_parts.differences import build_differences
from scripts.reference_parts.errors import build_errors
from scripts.reference_parts.providers import build_providers
from scripts.reference_parts.settings import build_settings

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": build_settings,
    "providers.md": build_providers,
    "commands.md": build_commands,
    "api.md": build_api,
    "errors.md": build_errors,
    "differences.md": build_differences,
}

if __name__ == "__main__":
    for name, build in PAGES.items():
        (FOLDER / name).write_text(build())
