"""Reads the pinned packages: writes a bill of materials of them, or looks for them in a file of advisories.

    .venv/bin/python scripts/supply_chain.py sbom > sbom.cdx.json       # CycloneDX 1.6, of scripts/pins.txt
    .venv/bin/python scripts/supply_chain.py audit advisories.json      # OSV, of scripts/pins.txt and pins-dev.txt

No network is asked. ``sbom`` is the same for the same pins, except for its time, which ``SOURCE_DATE_EPOCH`` may set.
``audit`` exits with 0 if no pinned version is affected, with 1 if one is, with 2 if the advisories cannot be read.

Sources: pip's "Requirements File Format", PEP 503 (names), CycloneDX 1.6 JSON Reference, the package URL type ``pypi``,
OSV Schema 1.7 ("affected", "Evaluation").
"""

import argparse
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
from attrs import field, frozen
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from gateway import __version__

ROOT = Path(__file__).resolve().parent.parent
RUN_PINS = ROOT / "scripts" / "pins.txt"
DEV_PINS = ROOT / "scripts" / "pins-dev.txt"
PROJECT: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
_ROOT_REF = f"pkg:pypi/{PROJECT}@{__version__}"
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[\w,.-]+\])?==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+?))? \\")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?: \\)?")
_VIA = re.compile(r"# +(?:via +)?(?!via\Z)([A-Za-z0-9][\w.-]*)(?: \(.*\))?")
_LOWEST, _HIGHEST = Version("0.dev0"), Version("9999!0")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://cyclonedx.org")


class BadInputError(Exception):
    """A file that cannot be read as what it should be; the message names it and says why."""


@frozen
class Pin:
    """One pinned package.

    Attributes:
        name: normalized (PEP 503).
        marker: the environments that need it (PEP 508); None: every one.
        hashes: SHA-256 of each file of the release, in hexadecimal.
        needed_by: the packages that require it, normalized; the project itself is one of them.
    """

    name: str
    version: str
    marker: str | None = None
    hashes: list[str] = field(factory=list)
    needed_by: list[str] = field(factory=list)

    @property
    def purl(self) -> str:
        """The package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def read_pins(*files: Path) -> list[Pin]:
    """The pins of requirement files as uv writes them, sorted by name. Raises ``BadInputError``."""
    pins: dict[str, Pin] = {}
    for file in files:
        pin: Pin | None = None
        for number, line in enumerate(file.read_text().splitlines(), 1):
            text = line.strip()
            if start := _PIN.fullmatch(text):
                pin = Pin(canonicalize_name(start["name"]), start["version"], start["marker"])
                pins[pin.name] = pin
            elif pin is not None and (found := _HASH.fullmatch(text)):
                pin.hashes.append(found[1])
            elif pin is not None and line.startswith(" ") and text.startswith("#"):
                if via := _VIA.fullmatch(text):
                    pin.needed_by.append(canonicalize_name(via[1]))
            elif text and not line.startswith("#"):
                raise BadInputError(f"{file}, line {number}: not a pin with hashes: {text}")
    return sorted(pins.values(), key=lambda pin: pin.name)


def write_sbom(pins: Sequence[Pin], timestamp: datetime) -> dict[str, Any]:
    """The bill of materials of ``pins``, as a CycloneDX 1.6 document."""
    project = {"type": "application", "bom-ref": _ROOT_REF, "name": PROJECT, "version": __version__}
    components = [_write_component(pin) for pin in pins]
    refs = {pin.name: pin.purl for pin in pins} | {canonicalize_name(PROJECT): _ROOT_REF}
    needs: dict[str, list[str]] = {ref: [] for ref in refs.values()}
    for pin in pins:
        for ref in {refs.get(name, _ROOT_REF) for name in pin.needed_by or (PROJECT,)}:
            needs[ref].append(pin.purl)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, repr((_ROOT_REF, pins)))}",
        "version": 1,
        "metadata": {
            "timestamp": timestamp.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {**project, "purl": _ROOT_REF, "licenses": [{"license": {"id": "Apache-2.0"}}]},
        },
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": sorted(needs[ref])} for ref in sorted(needs)],
    }


def _write_component(pin: Pin) -> dict[str, Any]:
    """One package. Its hashes are of the files of its release, of which one is installed."""
    marker = [{"name": "python:environment-marker", "value": pin.marker}] if pin.marker else []
    files = [
        {"type": "distribution", "url": pin.purl, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for digest in pin.hashes
    ]
    return {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "purl": pin.purl,
        "externalReferences": files,
        **({"properties": marker} if marker else {}),
    }


def read_advisories(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every advisory of OSV files, or of the files in folders; a file has one, a list, or a list under ``vulns``.

    Raises ``BadInputError``.
    """
    for path in paths:
        files = sorted(path.glob("**/*.json")) if path.is_dir() else [path]
        if not files:
            raise BadInputError(f"{path}: no advisories in this folder")
        for file in files:
            try:
                yield from _list_advisories(orjson.loads(file.read_bytes()))
            except (OSError, ValueError) as fault:
                raise BadInputError(f"{file}: {fault}") from fault


def _list_advisories(value: Any) -> list[dict[str, Any]]:
    given = value.get("vulns", [value]) if isinstance(value, dict) else value
    if not isinstance(given, list) or not all(isinstance(item, dict) and "id" in item for item in given):
        raise ValueError("neither an OSV advisory nor a list of them")
    return given


def find_affected(pins: Iterable[Pin], advisories: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each pinned version that an advisory names. An advisory that was withdrawn says nothing.

    Raises ``BadInputError`` if an advisory has another form than OSV's.
    """
    by_name = {pin.name: pin for pin in pins}
    lines: set[str] = set()
    for advisory in advisories:
        try:
            lines.update(_write_findings(by_name, advisory))
        except (AttributeError, KeyError, TypeError) as fault:
            raise BadInputError(f"{advisory['id']}: not in the form of OSV: {fault!r}") from fault
    return sorted(lines)


def _write_findings(pins: Mapping[str, Pin], advisory: Mapping[str, Any]) -> Iterator[str]:
    for affected in advisory.get("affected", ()) if not advisory.get("withdrawn") else ():
        package = affected.get("package", {})
        pin = pins.get(canonicalize_name(package.get("name", "")))
        if package.get("ecosystem") == "PyPI" and pin is not None and _is_affected(Version(pin.version), affected):
            names = ", ".join([advisory["id"], *advisory.get("aliases", ())])
            summary = " ".join(str(advisory.get("summary") or advisory.get("details") or "no summary").split())[:160]
            yield f"{pin.name} {pin.version}: {names}: {summary} ({_write_fix(Version(pin.version), affected)})"


def _is_affected(pinned: Version, affected: Mapping[str, Any]) -> bool:
    listed = any(_read_version(other, _LOWEST) == pinned for other in affected.get("versions", ()))
    return listed or any(_is_in_range(pinned, one) for one in affected.get("ranges", ()))


def _is_in_range(version: Version, given: Mapping[str, Any]) -> bool:
    """Whether a range holds ``version``: the last event that is not above it decides."""
    inside = False
    for edge, kind in sorted(_read_events(given)):
        if kind == "introduced":
            inside = inside or edge <= version
        elif edge < version or (edge == version and kind != "last_affected"):
            inside = False
    return inside


def _read_events(given: Mapping[str, Any]) -> Iterator[tuple[Version, str]]:
    """The events of a range of versions; none of a range of commits (``GIT``).

    A version that nobody can read is no reason to believe that a package is well.
    """
    for event in given["events"] if given.get("type") != "GIT" else ():
        for kind, reported in event.items():
            yield _read_version(reported, _LOWEST if kind == "introduced" else _HIGHEST), kind


def _read_version(message: str, otherwise: Version) -> Version:
    try:
        return _LOWEST if message == "0" else Version(message)
    except InvalidVersion:
        return otherwise


def _write_fix(pinned: Version, affected: Mapping[str, Any]) -> str:
    events = [event for one in affected.get("ranges", ()) for event in _read_events(one)]
    fixes = [edge for edge, kind in events if kind == "fixed" and pinned < edge < _HIGHEST]
    return f"fixed in {min(fixes)}" if fixes else "no fixed version is known"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the two; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    sbom = commands.add_parser("sbom", help="write a bill of materials")
    sbom.add_argument("pins", type=Path, nargs="*", default=[RUN_PINS])
    audit = commands.add_parser("audit", help="look for the pins in advisories")
    audit.add_argument("advisories", type=Path, nargs="+", help="OSV JSON: a file, or a folder of files")
    audit.add_argument("--pins", type=Path, nargs="+", default=[RUN_PINS, DEV_PINS])
    order = parser.parse_args(arguments)
    try:
        pins = read_pins(*order.pins)
        if order.command == "sbom":
            now = int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.now(UTC).timestamp())
            document = write_sbom(pins, datetime.fromtimestamp(now, UTC))
            print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
            return 0
        advisories = list(read_advisories(order.advisories))
        found = find_affected(pins, advisories)
    except (BadInputError, OSError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 2
    print("\n".join(found) if found else f"No advisory of {len(advisories)} affects the {len(pins)} pinned packages.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
