"""Execute the Dockerfile's steps in a chroot, for a machine without a Docker engine. Needs root and debootstrap.

The base image is replaced by a minimal Debian with its own Python. Every RUN, COPY, ENV, WORKDIR and USER is executed
as written; then the entry point starts as the image's user, the health check runs, and a chat answer is streamed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = "python3,python3-venv,ca-certificates"
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
START_S = 60
ASK = """
import json, sys, urllib.request
body = json.dumps({"model": "demo-chat", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()
head = {"Authorization": "Bearer " + sys.argv[1], "Content-Type": "application/json"}
answer = urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", body, head))
print(answer.read().decode()[-20:].strip())
"""


class Image:
    """A stage of the build: its root folder, and what its instructions have set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self.folder = "/"
        self.user = "0"
        self.commands: dict[str, list[str]] = {}

    def start(self, command: list[str], **options: object) -> "subprocess.Popen[bytes]":
        """Start ``command`` as the image's user, in its folder, with its environment and nothing else."""
        inside = [shutil.which("chroot") or "chroot", f"--userspec={self.user}:{self.user}", str(self.root)]
        enter = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', self.folder, *command]
        return subprocess.Popen([*inside, *enter], env=self.environ, **options)  # type: ignore[call-overload, no-any-return]

    def run(self, command: list[str]) -> None:
        """Run ``command``. Raises ``CalledProcessError``."""
        code = self.start(command).wait()
        if code:
            raise subprocess.CalledProcessError(code, command)

    def copy(self, source: Path, target: str) -> None:
        place = self.root / str(Path(self.folder, target)).lstrip("/")
        if source.is_dir():
            shutil.copytree(source, place, symlinks=True, dirs_exist_ok=True)
            return
        place = place / source.name if target.endswith("/") else place
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, place)


def read_instructions() -> Iterator[tuple[str, str]]:
    """Yield the word and the arguments of every instruction."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def build(base: Path, work: Path) -> Image:
    """Execute every instruction; return the last stage."""
    stages: dict[str, Image] = {}
    image = Image(base)
    for number, (word, rest) in enumerate(read_instructions()):
        print(f"{word} {rest}")
        if word == "FROM":
            image = Image(work / f"stage{number}")
            subprocess.run(["cp", "-a", str(base), str(image.root)], check=True)
            stages[rest.rpartition(" AS ")[2]] = image
        else:
            execute(image, stages, word, rest)
    return image


def execute(image: Image, stages: dict[str, Image], word: str, rest: str) -> None:
    """Execute an instruction other than FROM. Raises ``ValueError`` for one that is not known."""
    match word:
        case "WORKDIR":
            image.folder = rest
            (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        case "USER":
            image.user = rest
        case "ENV":
            name, _, value = rest.partition("=")
            image.environ[name] = value
        case "RUN":
            image.run(["/bin/sh", "-c", rest])
        case "COPY":
            *words, target = rest.split()
            stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
            for source in words:
                image.copy(ROOT / source if stage is None else stages[stage].root / source.lstrip("/"), target)
        case "ENTRYPOINT" | "CMD" | "HEALTHCHECK":
            image.commands[word] = json.loads(rest[rest.index("[") :])
        case "VOLUME" | "EXPOSE":
            pass
        case _:
            raise ValueError(f"unknown instruction {word}")


def try_image(image: Image, log: Path) -> None:
    """Start the image's command; check its health and stream an answer. Raises ``RuntimeError``."""
    with log.open("wb") as out:
        process = image.start([*image.commands["ENTRYPOINT"], *image.commands["CMD"]], stdout=out, stderr=out)
    try:
        until = time.monotonic() + START_S
        while (found := re.search(r"sk-[\w-]{20,}", log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(log.read_text())
            time.sleep(0.1)
        image.run(image.commands["HEALTHCHECK"])
        image.run(["python", "-c", ASK, found[0]])
    finally:
        process.terminate()
        print(f"stopped with {process.wait(60)}")


def main() -> None:
    """Build and try the image."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="An empty folder: about 1 GB.")
    parser.add_argument("--suite", default="bookworm")
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("Run it as root: chroot needs it")
    base = options.work / "base"
    if not base.exists():
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", options.suite, str(base)], check=True
        )
        (base / "usr/bin/python").symlink_to("python3")
        shutil.copy2("/etc/resolv.conf", base / "etc/resolv.conf")
        shutil.copy2(AUTHORITIES, base / AUTHORITIES.lstrip("/"))  # a mirror may have an authority of its own
    try_image(build(base, options.work), options.work / "log")


if __name__ == "__main__":
    main()
