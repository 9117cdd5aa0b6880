"""Makes the environments of the clients under .venv/clients, and says how a program runs in one."""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from scripts.client_runs.clients import NODE, PYTHON, Client

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "clients"
FOLDER = ROOT / ".venv" / "clients"
BUILD_S = 1_200
_STAMP = "pins.txt"


class Missing(Exception):
    """What a client needs is not on this machine, or could not be installed; the message says what."""


def prepare(client: Client) -> list[str]:
    """Make the client's environment if it is not there yet; return the command that runs it. Raises ``Missing``."""
    program, folder = PROGRAMS / client.program, FOLDER / client.environment
    if client.environment == "go":
        built = folder / "client"
        run_command(find_tool("go"), "build", "-o", str(built), ".", cwd=program)
        return [str(built)]
    if client.environment == "rust":
        # Its lock file stays out of the source tree.
        shutil.copytree(program, folder / "source", dirs_exist_ok=True)
        run_command(find_tool("cargo"), "build", "--quiet", "--target-dir", str(folder), cwd=folder / "source")
        return [str(folder / "debug" / "client")]
    if client.environment in PYTHON:
        install_python(folder, "\n".join(PYTHON[client.environment]))
        return [str(folder / "bin" / "python"), str(program), client.argument]
    install_node(folder, NODE[client.environment])
    shutil.copy(PROGRAMS / "steps.mjs", folder)
    return [find_tool("node"), str(shutil.copy(program, folder)), client.argument]


def install_python(folder: Path, requirements: str) -> None:
    """Make an environment of ``requirements`` if it is not there yet. Raises ``Missing``."""
    if _is_made(folder, requirements):
        return
    uv = make_installer() / "uv"
    shutil.rmtree(folder, ignore_errors=True)
    run_command(str(uv), "venv", "-q", "--python", sys.executable, str(folder))
    wanted = folder / "requirements.in"
    wanted.write_text(requirements)
    run_command(str(uv), "pip", "install", "-q", "--python", str(folder / "bin" / "python"), "-r", str(wanted))
    (folder / _STAMP).write_text(requirements)


def make_installer() -> Path:
    """Make the environment that has pip and uv; return the folder of its commands. Raises ``Missing``."""
    commands = FOLDER / "uv" / "bin"
    if not (commands / "uv").exists():
        venv.create(FOLDER / "uv", with_pip=True)
        pip = (str(commands / "python"), "-m", "pip", "--disable-pip-version-check", "-q")
        run_command(*pip, "install", "--only-binary", ":all:", "uv")
    return commands


def install_node(folder: Path, packages: Mapping[str, str]) -> Path:
    """Install ``packages`` in ``folder`` if they are not there yet; return where they are. Raises ``Missing``."""
    wanted = json.dumps({"private": True, "type": "module", "dependencies": dict(packages)})
    npm = find_tool("npm")
    made = folder / "node_modules"
    if _is_made(folder, wanted):
        return made
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(wanted)
    # Scripts of packages do not run: none of these needs one.
    run_command(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", cwd=folder)
    (folder / _STAMP).write_text(wanted)
    return made


def _is_made(folder: Path, pins: str) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text() == pins


def find_tool(tool: str) -> str:
    """Return the path of a command. Raises ``Missing``."""
    found = shutil.which(tool)
    if found is None:
        raise Missing(f"no {tool} on this machine")
    return found


def run_command(*words: str, cwd: Path = ROOT) -> None:
    """Run a command of an installation. Raises ``Missing`` with the end of its output."""
    try:
        done = subprocess.run(
            words, cwd=cwd, env=os.environ, timeout=BUILD_S, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise Missing(f"{Path(words[0]).name} took longer than {BUILD_S} s") from None
    if done.returncode:
        last = " ".join((done.stderr or done.stdout).split())[-300:]
        raise Missing(f"{Path(words[0]).name} failed: {last}")
