"""How this gateway was installed, and the command that adds an extra to it.

The gateway is in no package index. The command names a path, or pip could install another package of the same name.
"""

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from shlex import quote
from urllib.parse import unquote, urlsplit

import orjson

from gateway import __version__

_PACKAGE = "model-gateway"
_ROOT = Path(__file__).resolve().parent.parent
_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")


def format_install_command(extra: str) -> str:
    """Return the command that adds ``extra`` to this gateway.

    For a gateway in a zip file or a container, the text also says where to run the command.
    """
    if Path(sys.argv[0]).suffix == ".pyz":
        return f"pip install '.[{extra}]' in a checkout, and run that: gateway.pyz has no extras"
    if not _is_checkout() and any(Path(marker).exists() for marker in _CONTAINER_MARKS):
        return f"pip install '.[{extra}]' in the Dockerfile, and build the image anew"
    return f"pip install {quote(f'{_find_source()}[{extra}]')}"


def _is_checkout() -> bool:
    return (_ROOT / "pyproject.toml").exists()


def _find_source() -> str:
    """Return the path that the gateway was installed from; if unknown, the name of its wheel."""
    if _is_checkout():
        return str(_ROOT)
    wheel = f"./model_gateway-{__version__}-py3-none-any.whl"
    try:
        origin = orjson.loads(distribution(_PACKAGE).read_text("direct_url.json") or "{}")  # see PEP 610
    except (PackageNotFoundError, ValueError):
        return wheel
    url = urlsplit(str(origin.get("url", "")))
    return unquote(url.path) if url.scheme == "file" and url.path else wheel
