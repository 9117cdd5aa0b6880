"""The wheel, installed where nothing of this checkout can be seen: it has to hold everything it needs."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import orjson
import pytest
from packaging.requirements import Requirement

from gateway import __version__
from gateway.storage.data_folder import find_holder
from scripts.build_zipapp import build_zipapp

pytestmark = [pytest.mark.soak, pytest.mark.timeout(120)]

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = (
    "gateway",
    "config",
    "docs",
    "mkdocs.yml",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "setup.cfg",
)

LOOK = """
import asyncio, sys
from pathlib import Path
import orjson
import gateway
from gateway.config.schema import Config
from gateway.config.loader import find_data, read_config, read_prices
from gateway.server.help.pages import build_pages
from gateway.storage.open import open_database

async def migrate():
    database = await open_database("sqlite:///" + sys.argv[1])
    await database.check_writable()
    await database.close()

asyncio.run(migrate())
settings = find_data("gateway.toml")
print(orjson.dumps({
    "file": gateway.__file__,
    "version": gateway.__version__,
    "prices": len(read_prices(Config())),
    "settings": str(settings),
    "settings_exist": settings.exists(),
    "settings_are_good": bool(read_config(settings, {})),
    "help": list(build_pages()),
    "database": Path(sys.argv[1]).stat().st_size,
}).decode())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree, with what is installed and nothing from a network."""
    source = tmp_path_factory.mktemp("source")
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    out = source / "dist"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel in it.

    The dependencies are reached over one line of a .pth file: a plain path, in which no further .pth is read, so
    that an editable install of this checkout is not seen.
    """
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, cwd: Path, *arguments: str) -> str:
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        [str(python), "-I", *arguments], cwd=cwd, env=environ, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_the_package_its_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"gateway", f"model_gateway-{__version__}.dist-info"}
    assert {"gateway/_config/prices.toml", "gateway/_config/gateway.toml"} <= set(names)
    migrations = "gateway/storage/migrations/versions"
    assert {f"{migrations}/0006_version_0_7.py", f"{migrations}/0007_fingerprints.py"} <= set(names)
    assert "gateway/server/openapi/public.yaml" in names
    assert {"gateway/_docs/mkdocs.yml", "gateway/_docs/index.md", "gateway/_docs/reference/settings.md"} <= set(names)
    assert "gateway/server/console/locale/zh_Hans/LC_MESSAGES/console.po" in names
    ours = {str(path.relative_to(ROOT)) for path in (ROOT / "gateway").rglob("*.py")}
    assert ours <= set(names)
    assert not [name for name in names if name.endswith((".pyc", ".db", ".token"))]


def test_an_installed_gateway_needs_nothing_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    *_, text = run(installed, tmp_path, "-c", LOOK, str(tmp_path / "gateway.db")).splitlines()
    found = orjson.loads(text)
    home = installed.parent.parent
    assert Path(found["file"]).is_relative_to(home)
    assert found["version"] == __version__
    assert found["prices"] > 0
    assert found["settings_exist"]
    assert Path(found["settings"]).is_relative_to(home)
    assert found["settings_are_good"]
    assert found["help"][0] == "index"
    assert found["database"] > 0


def test_an_installed_gateway_says_its_version(installed: Path, tmp_path: Path) -> None:
    assert __version__ in run(installed, tmp_path, "-m", "gateway", "--version")


def copy_dependencies(folder: Path) -> None:
    """Copy what the gateway needs, and nothing else, from the packages of this environment."""
    wanted, copied = ["model-gateway"], set[str]()
    while wanted:
        found = distribution(wanted.pop())
        needed = [Requirement(line) for line in found.requires or ()]
        names = {one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
        wanted += names - copied
        copied |= names
        if found.name == "model-gateway":
            continue
        for file in found.files or ():
            if ".." not in file.parts:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(found.locate_file(file)), folder / file)


@pytest.mark.parametrize("command", ["gateway", "model-gateway"])
def test_the_installed_command_serves(installed: Path, tmp_path: Path, command: str) -> None:
    check_serves([str(installed.parent / command)], tmp_path)


def test_one_file_serves_where_nothing_is_installed(wheel: Path, tmp_path: Path) -> None:
    packages, file = tmp_path / "packages", tmp_path / "gateway.pyz"
    copy_dependencies(packages)
    build_zipapp(file, packages, wheel)
    shutil.rmtree(packages)
    check_serves([sys.executable, "-I", str(file)], tmp_path, SHIV_ROOT=str(tmp_path / "unpacked"))


def check_serves(command: list[str], tmp_path: Path, **environ: str) -> None:
    data = tmp_path / "data"
    command = [*command, "serve", "--port", "0", "--data", str(data)]
    environ = {"PATH": os.environ["PATH"], "GATEWAY_DISCOVER": "0", **environ}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        url = _await_url(process, data)
        with urllib.request.urlopen(f"{url}/healthz", timeout=5) as response:  # noqa: S310 - our own loopback address
            assert orjson.loads(response.read()) == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()


def _await_url(process: "subprocess.Popen[bytes]", data: Path) -> str:
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        holder = find_holder(data)
        if holder is not None and "url" in holder:
            return str(holder["url"])
        time.sleep(0.01)
    raise AssertionError((data.parent / "log").read_text())
