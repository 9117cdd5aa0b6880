"""What every command has in common: where options may stand, the data folder, old names, completion."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from gateway.cli.main import main
from tests.support.table_rows import table_rows

ARGUMENTS = {
    "name_or_id": "1",
    "node": "0123456789abcdef",
    "name": "routing.retry_ratio",
    "amount_usd": "5",
    "multiplier": "0.5",
    "value": "1",
    "account": "local",
    "request_id": "req_0123456789abcdef01234567",
    "file_id": "file-1",
    "batch_id": "batch_0123456789abcdef0123456789abcdef",
    "video_id": "video_0123456789abcdef0123456789abcdef",
    "video_ids": "video_0123456789abcdef0123456789abcdef",
    "model": "demo-chat",
    "shell": "bash",
    "file": "missing.gwb",
    "version": "0.7.0",
    "user": "u-17",
}
OPTIONS = {
    ("accounts", "edit"): ["--rpm", "5"],
    ("bodies", "delete"): ["--account", "acme", "--yes"],
    ("cache", "clear"): ["--account", "acme", "--yes"],
    ("channels", "add"): ["--provider", "openai", "--api-key", "sk-1"],
    ("channels", "edit"): ["--rpm", "5"],
    ("keys", "edit"): ["--rpm", "5"],
    ("limits", "add"): ["--of", "user", "--usd", "1"],
    ("limits", "edit"): ["--usd", "1"],
    ("limits", "raise"): ["--usd", "1", "--until", "friday"],
    ("members", "edit"): ["--role", "viewer"],
    ("nodes", "forget"): ["--release"],
    ("prices", "set"): ["--input", "1"],
    ("requests", "replay"): ["--key", "1"],
    ("routes", "add"): ["--step", "m"],
    ("routes", "edit"): ["--step", "m"],
    ("store", "copy"): ["--from", "missing", "--to", "postgresql://127.0.0.1:1/missing"],
    ("store", "missing"): [
        "--from",
        "postgresql://127.0.0.1:1/a",
        "--in",
        "postgresql://127.0.0.1:1/b",
        "--since",
        "1h",
    ],
}
WITHOUT_A_GATEWAY = (
    {("check",), ("completion",), ("doctor",), ("explain",), ("models", "list"), ("restore",)}
    | {("store", "copy"), ("store", "missing")}
    | {("channels", verb) for verb in ("list", "show", "test")}
    | {("routes", verb) for verb in ("show", "shadow", "test")}
)
"""Commands that work with a configuration file alone."""


def list_leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from list_leaves(command, (*path, name))
        else:
            yield (*path, name), command


LEAVES = {path: command for path, command in list_leaves(main) if path != ("serve",)}


def build_words(path: tuple[str, ...]) -> list[str]:
    command = LEAVES[path]
    arguments = [
        ARGUMENTS[one.name or ""] for one in command.params if isinstance(one, click.Argument) and one.required
    ]
    flags = ["--yes"] if any(one.name == "yes" for one in command.params) else []
    return [*path, *arguments, *OPTIONS.get(path, []), *flags]  # type: ignore[arg-type]


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_no_command_but_serve_creates_a_data_folder(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, build_words(path), env={"GATEWAY_DISCOVER": "0"}, input="")
    assert list(tmp_path.iterdir()) == []
    if path not in WITHOUT_A_GATEWAY:
        assert (result.exit_code, result.stdout) in {(1, ""), (2, "")}
        assert "GATEWAY_DATA" in result.stderr or "o gateway runs with the data folder" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--data", "DATA", "--json", "keys", "show", "1"),
        ("keys", "--data=DATA", "--json", "show", "1"),
        ("--json", "keys", "show", "--data", "DATA", "1"),
        ("--data", "DATA", "keys", "--json"),
        ("--data", "DATA", "--json", "keys"),
    ],
    ids=" ".join,
)
def test_options_of_every_command_may_stand_anywhere(words: tuple[str, ...], data: Path) -> None:
    result = CliRunner().invoke(main, [word.replace("DATA", str(data)) for word in words])
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("{\n")


def test_options_before_no_command_print_the_help() -> None:
    for words in (["--data", "x"], ["--data", "x", "--help"], ["--json"]):
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, result.stdout[:6]) == (0, "Usage:")


@pytest.mark.parametrize(("old", "new"), [("audit", "verify"), ("changes", "audit-log")])
def test_an_old_name_does_the_same_and_is_not_in_the_help(old: str, new: str, data: Path) -> None:
    printed = [CliRunner().invoke(main, [name, "--data", str(data), "--json"]) for name in (old, new)]
    assert [result.exit_code for result in printed] == [0, 0]
    assert printed[0].stdout == printed[1].stdout
    listed = CliRunner().invoke(main, ["--help"]).stdout.partition("Commands:")[2]
    assert f"\n  {new} " in listed
    assert f"\n  {old} " not in listed


@table_rows(
    ("typed", "meant"),
    [
        (("keys", "create", "--help"), ("keys", "add", "--help")),
        (("accounts", "create", "--help"), ("accounts", "add", "--help")),
        (("channels", "new", "--help"), ("channels", "add", "--help")),
        (("channels", "remove", "--help"), ("channels", "delete", "--help")),
        (("keys", "revoke", "--help"), ("keys", "disable", "--help")),
        (("accounts", "rm", "--help"), ("accounts", "delete", "--help")),
        (("members", "add", "--help"), ("members", "invite", "--help")),
        (("keys", "ls", "--help"), ("keys", "list", "--help")),
        (("channels", "get", "--help"), ("channels", "show", "--help")),
        (("keys", "update", "--help"), ("keys", "edit", "--help")),
        (("status", "--help"), ("health", "--help")),
        (("config", "--help"), ("check", "--help")),
        (("start", "--help"), ("serve", "--help")),
        (("logs", "--help"), ("requests", "list", "--help")),
        (("version",), ("--version",)),
        (("help",), ("--help",)),
        (("help", "keys", "add"), ("keys", "add", "--help")),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else None,
)
def test_the_words_of_other_tools_are_understood(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    printed, expected = (CliRunner().invoke(main, words) for words in (typed, meant))
    assert (printed.exit_code, expected.exit_code) == (0, 0)
    # The usage line has the name as it was typed.
    assert printed.stdout.splitlines()[1:] == expected.stdout.splitlines()[1:]


def test_a_verb_keeps_its_own_meaning_if_the_group_has_it() -> None:
    for group, verb in (("prices", "set"), ("settings", "set"), ("members", "invite")):
        usage = CliRunner().invoke(main, [group, verb, "--help"]).stdout.splitlines()[0]
        assert f" {group} {verb} " in usage


def test_nothing_stops_a_gateway_but_a_signal_and_that_is_said() -> None:
    result = CliRunner().invoke(main, ["stop"])
    assert (result.exit_code, "SIGTERM" in result.stderr) == (2, True)


def test_the_name_of_a_new_key_is_an_argument(data: Path) -> None:
    for words, name in ((["laptop"], "laptop"), (["--name", "phone"], "phone"), ([], "key-4")):
        printed = CliRunner().invoke(main, ["keys", "add", *words, "--json", "--data", str(data)])
        assert (printed.exit_code, f'"name": "{name}"' in printed.stdout) == (0, True), printed.output
    twice = CliRunner().invoke(main, ["keys", "add", "one", "--name", "other", "--data", str(data)])
    assert (twice.exit_code, "Give one name" in twice.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("keys", "delete", "1"), "--yes"),
        (("channels", "remove", "lab"), "--yes"),
        (("members", "delete", "ann"), "--yes"),
        (("accounts", "delete", "local"), "--yes, or --confirm"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else None,
)
def test_a_question_without_a_terminal_names_the_option_that_answers_it(
    words: tuple[str, ...], option: str, data: Path
) -> None:
    refused = CliRunner().invoke(main, [*words, "--data", str(data)], input="")
    assert (refused.exit_code, f"There is no terminal to ask: pass {option}" in refused.stderr) == (2, True)
    declined = CliRunner().invoke(main, [*words, "--data", str(data)], input="n\n")
    assert declined.exit_code == 1


def test_a_completion_script_is_printed_for_each_shell() -> None:
    for shell in ("bash", "zsh", "fish"):
        script = CliRunner().invoke(main, ["completion", shell])
        assert script.exit_code == 0
        assert f"_GATEWAY_COMPLETE={shell}_complete" in script.stdout
        if found := shutil.which(shell):
            assert subprocess.run([found, "-n"], input=script.stdout, text=True, check=False).returncode == 0
    asked = {"_GATEWAY_COMPLETE": "bash_complete", "COMP_WORDS": "gateway audit-", "COMP_CWORD": "1"}
    completed = CliRunner().invoke(main, [], env=asked, prog_name="gateway")
    assert completed.stdout == "plain,audit-log\n"


@pytest.mark.parametrize(
    "words",
    [
        ("keys", "edit", "1", "--allow-ips", "10.0.0.300"),
        ("keys", "edit", "1", "--rpm", "it's"),
        ("keys", "show", "a\\b"),
    ],
    ids=" ".join,
)
def test_a_refused_value_is_shown_as_it_was_given(words: tuple[str, ...], data: Path) -> None:
    refused = CliRunner().invoke(main, [*words, "--data", str(data)])
    assert refused.exit_code != 0
    assert f"'{words[-1]}'" in refused.stderr
