"""Check commit messages: ``area: imperative`` in at most 72 characters, a blank line, and a body with the reason.

``check_commits.py FILE`` checks one message, for git's hook commit-msg. ``check_commits.py A..B`` checks the commits of
a range. The exit status is 1 if a message is wrong; every fault is a line of the standard error output.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MOST = 72
_SUBJECT = re.compile(r"[a-z0-9_.][a-z0-9_., /-]*: \S")
_CUT = "# ------------------------ >8 ------------------------"  # git commit --verbose


def find_faults(message: str) -> Iterator[str]:
    """Yield what is wrong with a message. A merge commit's message is git's own, and right."""
    lines = [line.rstrip() for line in message.split(_CUT, maxsplit=1)[0].splitlines() if not line.startswith("#")]
    subject, *rest = lines or [""]
    if subject.startswith("Merge "):
        return
    if len(subject) > MOST:
        yield f"the subject has {len(subject)} characters, {MOST} at most"
    if not _SUBJECT.match(subject):
        yield "the subject is not `area: imperative`, as in `billing: cap implausible usage`"
    if subject.endswith("."):
        yield "the subject ends with a full stop"
    if rest and rest[0]:
        yield "the second line is not blank"
    if not any(rest[1:]):
        yield "the body is missing: give the reason, and the evidence"


def read_messages(commits: str) -> Iterator[tuple[str, str]]:
    """Yield the short hash and the message of each commit of a range."""
    command = ["git", "log", "--format=%h%n%B%x00", commits]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for commit in filter(None, (part.strip() for part in log.split("\0"))):
        name, _, message = commit.partition("\n")
        yield name, message


def main(argument: str) -> int:
    """Check the message in a file or those of a range, and return the exit status."""
    is_range = ".." in argument and not Path(argument).exists()
    messages = read_messages(argument) if is_range else [("", Path(argument).read_text(encoding="utf-8"))]
    faults = [f"{name} {error}".strip() for name, message in messages for error in find_faults(message)]
    for error in faults:
        print(error, file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
