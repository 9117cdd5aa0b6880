"""The pins are whole and hashed, what installs them checks the hashes, and two tools read them."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from scripts import supply_chain
from tests.support.table_rows import table_rows

ROOT = Path(__file__).resolve().parent.parent
RUN, DEV = ROOT / "scripts" / "pins.txt", ROOT / "scripts" / "pins-dev.txt"
HASHES = "--hash=sha256:" + "ab" * 32
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[\w,.-]+\])?==(\S+)(?: ; ([^\\]+))?", re.MULTILINE)

EXTRAS = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[([\w,.-]+)\])?==", re.MULTILINE)


def read_pins(*files: Path) -> dict[str, Version]:
    """Names and versions of what this environment needs, read without the tool under test."""
    found = [match.groups() for file in files for match in PIN.finditer(file.read_text())]
    names = [name for name, _, _ in found]
    assert len(names) == len(set(names)), "pip refuses a package that is pinned twice"
    return {name: Version(version) for name, version, marker in found if not marker or Marker(marker).evaluate()}


@attrs.frozen
class Done:
    """What the tool came to."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str | Path, **environ: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name, value in environ.items():
            patch.setenv(name, value)
        code = supply_chain.main(list(map(str, arguments)))
    return Done(code, out.getvalue(), err.getvalue())


def write_pins(folder: Path, *pins: str) -> Path:
    file = folder / "pins.txt"
    file.write_text("".join(f"{pin} \\\n    {HASHES}\n" for pin in pins))
    return file


def advise(**affected: Any) -> dict[str, Any]:
    """An advisory that was made up."""
    package = {"ecosystem": "PyPI", "name": "Some_Package"}
    return {
        "id": "GHSA-made-up",
        "aliases": ["CVE-2000-1"],
        "summary": "It leaks\nmemory",
        "affected": [{"package": package, **affected}],
    }


def span(*events: dict[str, str], kind: str = "ECOSYSTEM") -> dict[str, Any]:
    return advise(ranges=[{"type": kind, "events": list(events)}])


def audit(folder: Path, advisories: Any, version: str = "1.5") -> Done:
    file = folder / "advisories.json"
    file.write_bytes(advisories if isinstance(advisories, bytes) else orjson.dumps(advisories))
    return run("audit", file, "--pins", write_pins(folder, f"some-package=={version}", "other==2"))


@table_rows("file", [RUN, DEV])
def test_every_pin_has_its_hashes_and_no_file_says_where_packages_are_had(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert not [line for line in lines if re.search(r"://|index-url|find-links|trusted-host", line)]
    starts = [at for at, line in enumerate(lines) if PIN.match(line)]
    assert len(starts) > 20
    assert all(lines[at].endswith("\\") and re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", lines[at + 1])
               for at in starts)  # fmt: skip
    assert not [line for line in lines if line[:1] not in ("", " ", "#") and not PIN.match(line)]


def test_the_hashes_are_of_every_platforms_files_and_not_of_this_ones_alone() -> None:
    """A release that has wheels by platform has at least four for each of three Pythons."""
    pins = {pin.name: pin for pin in supply_chain.read_pins(RUN)}
    assert all(len(pins[name].hashes) > 12 for name in ("aiohttp", "orjson", "uvloop", "yarl"))


def test_what_the_project_asks_for_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for files, wanted in (
        ((RUN,), project["project"]["dependencies"] + project["build-system"]["requires"] + ["editables"]),
        ((RUN, DEV), project["project"]["optional-dependencies"]["dev"]),
    ):
        pins = read_pins(*files)
        for asked in map(Requirement, wanted):
            assert pins[canonicalize_name(asked.name)] in asked.specifier, asked


def test_whatever_a_pinned_package_requires_is_pinned_too() -> None:
    """Else pip refuses the whole list. What is installed here are the pins."""
    pins = read_pins(RUN, DEV)
    for name, version in pins.items():
        found = distribution(name)
        assert Version(found.version) == version
        for asked in map(Requirement, found.requires or ()):
            if asked.marker is None or asked.marker.evaluate({"extra": ""}):
                assert pins[canonicalize_name(asked.name)] in asked.specifier, (name, asked)


def test_a_pin_names_the_extras_that_other_packages_require_of_it() -> None:
    """Else pip before 23.3 takes the newest version for the extra, and refuses it for want of a hash."""
    named = {
        canonicalize_name(found[1]): found[2] or ""
        for file in (RUN, DEV)
        for found in EXTRAS.finditer(file.read_text())
    }
    required = [
        asked
        for name in read_pins(RUN, DEV)
        for asked in map(Requirement, distribution(name).requires or ())
        if asked.marker is None or asked.marker.evaluate({"extra": ""})
    ]
    missing = [str(asked) for asked in required if asked.extras - set(named[canonicalize_name(asked.name)].split(","))]
    assert any(asked.extras for asked in required)
    assert not missing


def test_whatever_make_installs_from_the_index_is_checked_by_its_hash() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    command = [make, "-C", str(ROOT), "--dry-run", "--always-make", "run", "test"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    installs = [line for line in done.stdout.splitlines() if " install " in line and "python -m pip" in line]
    assert len(installs) == 3
    checked = [line for line in installs if "--require-hashes --only-binary :all:" in line]
    (own,) = [line for line in installs if line not in checked]
    assert "--no-index --no-deps --no-build-isolation -e ." in own, "the project itself comes from this folder"


def test_the_bill_of_materials_has_what_cyclonedx_asks_for() -> None:
    done = run("sbom", SOURCE_DATE_EPOCH="86400")
    assert (done.returncode, done.stderr) == (0, "")
    document = orjson.loads(done.stdout)
    assert done.stdout == run("sbom", SOURCE_DATE_EPOCH="86400").stdout
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"])
    assert document["metadata"]["timestamp"] == "1970-01-02T00:00:00Z"
    assert document["metadata"]["component"]["name"] == "model-gateway"
    for component in document["components"]:
        assert component["type"] == "library"
        assert component["purl"] == component["bom-ref"] == f"pkg:pypi/{component['name']}@{component['version']}"
        files = component["externalReferences"]
        assert files
        assert {file["type"] for file in files} == {"distribution"}
        assert all(re.fullmatch("[0-9a-f]{64}", digest["content"]) for file in files for digest in file["hashes"])
        assert {digest["alg"] for file in files for digest in file["hashes"]} == {"SHA-256"}
    listed = {component["name"]: Version(component["version"]) for component in document["components"]}
    assert read_pins(RUN).items() <= listed.items()


def test_the_bill_of_materials_says_what_needs_what() -> None:
    document = orjson.loads(run("sbom").stdout)
    refs = {component["bom-ref"] for component in document["components"]}
    root = document["metadata"]["component"]["bom-ref"]
    needs = {entry["ref"]: entry["dependsOn"] for entry in document["dependencies"]}
    assert set(needs) == refs | {root}
    assert {ref for all_of in needs.values() for ref in all_of} == refs, "each is needed by something"
    named = {ref.split("@")[0].removeprefix("pkg:pypi/"): ref for ref in refs}
    assert named["yarl"] in needs[named["aiohttp"]]
    assert {named["aiohttp"], named["hatchling"]} <= set(needs[root])
    assert named["cffi"] not in needs[root], "only others need it"


def test_the_pins_for_development_have_a_bill_too(tmp_path: Path) -> None:
    document = orjson.loads(run("sbom", RUN, DEV).stdout)
    assert {"aiohttp", "pytest"} <= {component["name"] for component in document["components"]}
    done = run("sbom", tmp_path / "none.txt")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("line", ["aiohttp>=3", "-r other.txt", "aiohttp==3.14.5", "--index-url x"])
def test_a_line_that_is_no_pin_with_hashes_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "pins.txt"
    file.write_text(f"# a comment\n{line}\n")
    done = run("sbom", file)
    assert done.returncode == 2
    assert f"{file}, line 2" in done.stderr


def test_a_pinned_version_that_is_affected_is_told_with_its_names_and_its_fix(tmp_path: Path) -> None:
    done = audit(tmp_path, span({"introduced": "0"}, {"fixed": "1.10"}))
    assert done.returncode == 1
    assert done.stdout == "some-package 1.5: GHSA-made-up, CVE-2000-1: It leaks memory (fixed in 1.10)\n"


@pytest.mark.parametrize(
    ("advisory", "version", "affected"),
    [
        (span({"introduced": "0"}), "0.1", True),
        (span({"introduced": "0"}, {"fixed": "1.5"}), "1.5", False),
        (span({"introduced": "0"}, {"fixed": "1.5"}), "1.5rc1", True),
        (span({"introduced": "1.4"}, {"last_affected": "1.5"}), "1.5", True),
        (span({"introduced": "1.4"}, {"last_affected": "1.5"}), "1.5.post1", False),
        (span({"introduced": "1.6"}), "1.5", False),
        (span({"introduced": "2"}, {"fixed": "1.1"}, {"introduced": "0"}), "1.5", False),
        (span({"introduced": "0"}, {"fixed": "1.1"}, {"introduced": "1.5"}), "1.5", True),
        (span({"introduced": "1.2"}, {"fixed": "1.10"}), "1.9", True),
        (span({"introduced": "1.2"}, {"limit": "1.9"}), "1.9", False),
        (span({"introduced": "0"}, {"limit": "*"}), "1.5", True),
        (span({"introduced": "no version"}), "1.5", True),
        (span({"introduced": "0"}, {"fixed": "no version"}), "1.5", True),
        (span({"introduced": "0"}, kind="GIT"), "1.5", False),
        (advise(versions=["1.4", "1.5.0"]), "1.5", True),
        (advise(versions=["1.4", "no version"]), "1.5", False),
        (span({"introduced": "0"}) | {"withdrawn": "2020-01-01T00:00:00Z"}, "1.5", False),
        (advise(package={"ecosystem": "npm", "name": "some-package"}, versions=["1.5"]), "1.5", False),
        (advise(package={"ecosystem": "PyPI", "name": "third"}, versions=["1.5"]), "1.5", False),
        ({"id": "X"}, "1.5", False),
    ],
)  # fmt: skip
def test_a_version_is_affected_as_the_schema_evaluates_it(
    advisory: dict[str, Any], version: str, affected: bool, tmp_path: Path
) -> None:
    done = audit(tmp_path, advisory, version)
    assert (done.returncode, done.stderr) == (int(affected), "")


def test_advisories_come_alone_in_lists_under_a_name_and_in_folders(tmp_path: Path) -> None:
    one, other = span({"introduced": "0"}), {"id": "X"}
    assert [audit(tmp_path, form).returncode for form in (one, [other, one], {"vulns": [one]})] == [1, 1, 1]
    answer = audit(tmp_path, {"vulns": [other]})
    assert (answer.returncode, answer.stdout) == (0, "No advisory of 1 affects the 2 pinned packages.\n")
    folder = tmp_path / "all"
    folder.mkdir()
    assert run("audit", folder).returncode == 2, "an empty folder proves nothing"
    (folder / "a.json").write_bytes(orjson.dumps(other))
    (folder / "b.json").write_bytes(orjson.dumps(one))
    assert run("audit", folder, "--pins", write_pins(tmp_path, "some-package==1.5")).returncode == 1


@pytest.mark.parametrize(
    "odd",
    [b"", b"no JSON", b"[1]", b"3", b'{"name": "x"}', b'{"vulns": 1}', b'{"id": "X", "affected": [3]}',
     orjson.dumps(advise(ranges=[{"type": "SEMVER"}]))],
)  # fmt: skip
def test_what_cannot_be_read_is_neither_clean_nor_affected(odd: bytes, tmp_path: Path) -> None:
    done = audit(tmp_path, odd)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")


def test_the_pins_of_the_project_are_what_is_audited(tmp_path: Path) -> None:
    version = read_pins(DEV)["pytest"]
    advisory = advise(package={"ecosystem": "PyPI", "name": "pytest"}, versions=[str(version)])
    file = tmp_path / "a.json"
    file.write_bytes(orjson.dumps(advisory))
    command = [sys.executable, supply_chain.__file__, "audit", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (
        1,
        f"pytest {version}: GHSA-made-up, CVE-2000-1: It leaks memory (no fixed version is known)\n",
    )
