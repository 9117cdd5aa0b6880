"""Commit messages are checked before they are part of the history."""

from pathlib import Path

import pytest

from scripts.check_commits import find_faults, main
from tests.support.table_rows import table_rows

GOOD = "billing: cap implausible usage and log it\n\nA provider's count is bounded by the body.\n"


@table_rows(
    ("message", "faults"),
    [
        (GOOD, []),
        ("Merge branch 'videos'\n", []),
        (GOOD + "# Changes to be committed:\n#\tmodified: x.py\n", []),
        (GOOD.replace("billing", "server, cli"), []),
        ("Usage that cannot be is charged\n\nReason.\n", ["the subject is not"]),
        ("billing: cap usage.\n\nReason.\n", ["the subject ends"]),
        ("billing: cap usage\nReason.\n", ["the second line", "the body is missing"]),
        ("billing: cap usage\n", ["the body is missing"]),
        ("billing: cap usage\n\n# only a comment\n", ["the body is missing"]),
        (f"billing: {'x' * 64}\n\nReason.\n", ["the subject has 73 characters"]),
        ("", ["the subject is not", "the body is missing"]),
    ],
)
def test_a_message_names_area_and_reason(message: str, faults: list[str]) -> None:
    found = [*find_faults(message)]
    assert len(found) == len(faults)
    assert all(fault.startswith(beginning) for fault, beginning in zip(found, faults, strict=True))


def test_a_file_is_checked_for_git(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(GOOD)
    assert main(str(path)) == 0
    path.write_text("wip\n")
    assert main(str(path)) == 1
    assert "`area: imperative`" in capsys.readouterr().err
