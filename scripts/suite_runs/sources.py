"""Fetches the suites and what they need, into .venv/clients/suites: source archives, an environment, a document."""

import hashlib
import json
import subprocess
import tarfile
import urllib.request
from pathlib import Path

import yaml

from scripts.client_runs.environments import FOLDER, Missing, install_python, make_installer, run_command
from scripts.suite_runs.document import Document
from scripts.suite_runs.suites import OPENAPI, REQUIREMENTS, Suite

PROGRAMS = Path(__file__).resolve().parent / "inside"
_FOLDER = FOLDER / "suites"
_FETCH_S = 120


def make_environment() -> Path:
    """Return the interpreter of the environment that the suites run in, made if it is not there. Raises ``Missing``."""
    install_python(_FOLDER / "env", "\n".join(REQUIREMENTS))
    return _FOLDER / "env" / "bin" / "python"


def fetch_suite(suite: Suite) -> Path:
    """Return the folder of a suite's unpacked source archive, fetched if it is not there. Raises ``Missing``."""
    folder = _FOLDER / f"{suite.package}-{suite.version}"
    archive = _FOLDER / f"{suite.package}-{suite.version}.tar.gz"
    if not archive.exists():
        pip = (str(make_installer() / "python"), "-m", "pip", "--disable-pip-version-check", "-q", "download")
        wanted = f"{suite.package}=={suite.version}"
        run_command(*pip, "--no-deps", "--no-binary", suite.package, "--dest", str(_FOLDER), wanted)
    _check(archive.read_bytes(), suite.archive, archive.name)
    if not folder.exists():
        with tarfile.open(archive) as packed:
            packed.extractall(_FOLDER, filter="data")
    return folder


def load_openai(path: Path | None) -> Document:
    """Return OpenAI's document: the file ``path``, or if None the public one. Raises ``Missing``."""
    kept = path or _FOLDER / "openapi.yaml"
    if not kept.exists():
        url, digest = OPENAPI
        try:
            with urllib.request.urlopen(url, timeout=_FETCH_S) as response:  # noqa: S310 - the address is ours
                content = response.read()
        except OSError as error:
            raise Missing(f"{url}: {error}; name a copy with --spec") from None
        _check(content, digest, url)
        kept.write_bytes(content)
    return Document(yaml.load(kept.read_text(), Loader=yaml.CSafeLoader))


def load_anthropic(python: Path) -> tuple[Document, Document]:
    """Return documents of Anthropic's stable and beta API, made from the types of its library. Raises ``Missing``."""
    done = subprocess.run([python, PROGRAMS / "describe_anthropic.py"], check=False, capture_output=True, text=True)
    if done.returncode:
        raise Missing(f"the types of anthropic cannot be read: {done.stderr[-300:]}")
    stable, newer = (Document(content) for content in json.loads(done.stdout))
    return stable, newer


def _check(content: bytes, digest: str, name: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise Missing(f"{name} has the SHA-256 {found}, not {digest}")
