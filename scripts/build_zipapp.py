"""Build dist/gateway.pyz: the gateway and everything it needs in one executable file, for this platform and Python.

The file is a zip archive that Python runs (PEP 441). Compiled packages cannot be imported from an archive: the first
start unpacks it to ~/.shiv, or to SHIV_ROOT. It needs the Python version it was built with.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "scripts" / "pins.txt"


def build_zipapp(out: Path, packages: Path | None = None, wheel: Path | None = None) -> None:
    """Write the file ``out``.

    ``packages`` is a folder with the gateway's dependencies; without it the pinned versions are downloaded, each
    checked by its hash. Without ``wheel`` the gateway's is built from this tree.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if packages is None:
            packages = folder / "packages"
            wheels = ("--require-hashes", "--only-binary", ":all:", "-r", str(PINS))
            _run("pip", "install", "--quiet", "--target", str(packages), *wheels)
        gateway = folder / "gateway"
        if wheel is None:
            _run("build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
            (wheel,) = folder.glob("*.whl")
        _run("pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(gateway), str(wheel))
        out.parent.mkdir(parents=True, exist_ok=True)
        python = f"/usr/bin/env python{sys.version_info.major}.{sys.version_info.minor}"
        sites = ("--site-packages", str(packages), "--site-packages", str(gateway))
        start = ("--console-script", "gateway", "--python", python)
        _run("shiv.cli", *sites, *start, "--reproducible", "--output-file", str(out))


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "gateway.pyz")
    parser.add_argument("--packages", type=Path)
    options = parser.parse_args()
    build_zipapp(options.out, options.packages)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")
