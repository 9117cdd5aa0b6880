"""The `gateway` command, as an operator sees it."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway import __version__
from gateway.cli.main import main
from gateway.config.extras import MODULES
from gateway.installation import format_install_command
from gateway.storage.data_folder import DataFolder, find_holder
from tests.support import command_line

BROKEN = '[server]\nprot = 1\nport = "x"\n[[channel]]\nname = "a"\nprovider = "nobody"\n'
DEAD = '[[channel]]\nname = "dead"\nprovider = "custom"\nbase_url = "http://127.0.0.1:9/v1"\nmodels = ["m"]\n'


FILMS = ("demo-video", "demo-video-blocked", "demo-video-fail", "demo-video-slow")
TEXTS, SOUNDS = ("demo-chat", "demo-embedding"), ("demo-speech", "demo-transcribe")
DEMO_MODELS = (*TEXTS, "demo-image", "demo-realtime", *SOUNDS, *FILMS)


@pytest.fixture
def server(shared: command_line.Server) -> Iterator[command_line.Server]:
    """A running gateway with one account and one key; what the test adds goes with it."""
    yield shared
    shared.tidy()


def run_afresh(cwd: Path, *commands: list[str]) -> tuple[list[list[Any]], set[str]]:
    """The same in a Python of their own, and which heavy packages were imported at the end."""
    made = subprocess.run(
        [sys.executable, "-m", command_line.MANY, json.dumps(commands)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=command_line.environment(),
        timeout=command_line.WAIT_LIMIT_S,
        check=True,
    )
    answer = json.loads(made.stdout)
    return answer["done"], set(answer["heavy"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[command_line.Server]:
    """One gateway for all: a start costs a second."""
    with command_line.serving(tmp_path_factory.mktemp("cli") / "data", signal.SIGTERM) as started:
        yield started


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration with problems."""
    path = tmp_path_factory.mktemp("config") / "broken.toml"
    path.write_text(BROKEN)
    return path


@pytest.mark.slow
def test_the_first_start_prints_a_key_and_a_call_that_streams_as_it_stands(server: command_line.Server) -> None:
    assert f"{__version__} answers at {server.url}" in server.greeting
    assert "demo" in server.greeting
    assert "not shown again, only its hash is stored" in server.greeting
    assert f"{server.url}/console/setup#" in server.greeting
    assert f'client = OpenAI(base_url="{server.url}/v1", api_key="{server.secret}")' in server.greeting
    words = shlex.split(server.greeting[server.greeting.index("curl") :].partition("\n\n")[0])
    assert words[:2] == ["curl", "-N"]
    headers = {words[index + 1] for index, word in enumerate(words) if word == "-H"}
    assert f"export GATEWAY_KEY={server.secret}\n" in server.greeting
    assert headers == {"Authorization: Bearer $GATEWAY_KEY", "Content-Type: application/json"}
    answer = server.chat(server.secret, url=words[2], body=words[words.index("-d") + 1])
    assert answer.count("data: ") > 2
    assert answer.endswith("data: [DONE]\n\n")


@pytest.mark.slow
def test_an_account_is_added_shown_edited_disabled_and_deleted(server: command_line.Server) -> None:
    for group in ("x", "y"):
        server.ask("groups", "set", group, "1")
    added = server.invoke("accounts", "add", "team/a", "--quota-usd", "0.1", "--rpm", "60", "--groups", "x, y")
    assert (added.exit_code, added.stdout) == (0, "The account team/a is added.\n")
    shown = server.ask("accounts", "show", "team/a")
    assert (shown["quota_usd"], shown["quota_period"], shown["rpm"], shown["groups"]) == (
        0.1,
        "lifetime",
        60,
        ["x", "y"],
    )
    edited = server.ask("accounts", "edit", "team/a", "--name", "b", "--quota-usd", "none", "--groups", "none")
    assert (edited["name"], edited["quota_usd"], edited["rpm"], edited["groups"]) == ("b", None, 60, [])
    assert server.invoke("accounts", "disable", "b").stdout == "The account b is disabled.\n"
    assert "disabled" in server.invoke("accounts").stdout
    assert server.ask("accounts", "enable", "b")["status"] == "active"
    assert server.invoke("accounts", "delete", "b", input="n\n").exit_code == 1
    assert "b" in {account["name"] for account in server.ask("accounts", "list")["data"]}
    assert server.invoke("accounts", "delete", "b", "--yes").exit_code == 0
    assert [account["name"] for account in server.ask("accounts")["data"]] == ["local"]


@pytest.mark.slow
def test_a_key_is_printed_once_and_works_until_it_is_disabled(server: command_line.Server) -> None:
    made = server.invoke("keys", "create", "--models", "demo-*", "--expires-at", "2999-01-31")
    secret = made.stdout.strip()
    assert secret.startswith("sk-")
    assert secret not in made.stderr
    assert "not shown again" in made.stderr
    assert "demo-chat" in server.chat(secret)
    key = server.ask("keys")["data"][-1]
    assert (key["name"], key["key"], key["models"]) == ("key-2", f"sk-…{secret[-4:]}", ["demo-*"])
    number = str(key["id"])
    for command in (["keys"], ["keys", "show", number], ["keys", "--json"], ["keys", "show", number, "--json"]):
        assert secret not in server.invoke(*command).output
    assert server.ask("keys", "edit", number, "--models", "none", "--quota-status", "429")["quota_status"] == 429
    assert "disabled" in server.invoke("keys", "disable", number).stdout
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        server.chat(secret)
    refused.value.close()
    assert server.ask("keys", "enable", number)["status"] == "active"
    assert "demo-chat" in server.chat(secret)
    assert server.invoke("keys", "delete", number, input="y\n").exit_code == 0
    assert server.invoke("keys", "show", number).exit_code == 1


@pytest.mark.slow
def test_with_several_accounts_a_key_needs_to_be_told_whose(server: command_line.Server) -> None:
    server.ask("accounts", "add", "other")
    refused = server.invoke("keys", "create")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "--account: local, other" in refused.stderr
    made = server.ask("keys", "create", "--account", "other")
    assert (made["account"], made["name"], made["secret"][:3]) == ("other", "key-1", "sk-")
    server.ask("accounts", "delete", "other", "--yes")
    assert made["id"] not in {key["id"] for key in server.ask("keys")["data"]}


@pytest.mark.slow
def test_channels_and_models_are_listed_shown_and_tested(server: command_line.Server) -> None:
    (channel,) = server.ask("channels")["data"]
    assert (channel["name"], channel["offers"]) == ("demo", len(DEMO_MODELS))
    assert server.ask("channels", "show", "demo")["offered"] == list(DEMO_MODELS)
    tested = {"name": "demo", "ok": True, "error": None, "models": len(DEMO_MODELS), "keys": [], "request": None}
    assert server.ask("channels", "test", "demo") == tested
    assert server.ask("channels", "test")["data"][0]["ok"] is True
    assert [model["id"] for model in server.ask("models")["data"]] == list(DEMO_MODELS)
    assert server.ask("models", "list") == server.ask("models")
    assert [model["id"] for model in server.ask("models", "list", "EMBED")["data"]] == ["demo-embedding"]
    for words in (["channels"], ["channels", "show", "demo"], ["channels", "test"], ["models"]):
        result = server.invoke(*words)
        assert result.exit_code == 0
        assert "demo" in result.stdout
        lists = ("serves ", "offers ")  # as long as they are
        assert max(len(line) for line in result.stdout.splitlines() if not line.startswith(lists)) <= 80


@pytest.mark.slow
def test_requests_are_listed_by_limit_key_model_and_status(server: command_line.Server) -> None:
    secret = server.ask("keys", "create", "--name", "listed")
    number = str(secret["id"])
    server.chat(secret["secret"])
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        server.chat(secret["secret"], model="no-such-model")
    refused.value.close()

    def models(*words: str) -> list[str]:
        return [row["model"] for row in server.ask("requests", "--key", number, *words)["data"]]

    until = time.monotonic() + command_line.WAIT_LIMIT_S
    while len(models()) < 2 and time.monotonic() < until:  # rows are written after the answer
        time.sleep(0.02)
    assert models() == ["demo-chat", "no-such-model"]
    assert models("--limit", "1") == ["no-such-model"]
    assert models("--model", "demo-chat") == ["demo-chat"]
    assert models("--status", "404") == ["no-such-model"]
    assert models("--status", "error", "--text", "MODEL_NOT", "--since", "2026-01-01") == ["no-such-model"]
    assert models("--until", "2026-01-01") == []
    exported = server.invoke("requests", "--key", number, "--export", "csv").stdout.splitlines()
    assert [line.count("no-such-model") > 0 for line in exported] == [False, True, False]
    refused_words = server.invoke("requests", "--export", "jsonl", "--since", "soon")
    assert (refused_words.exit_code, refused_words.stdout) == (1, "")
    assert "'since' must be a time" in refused_words.stderr
    table = server.invoke("requests", "list", "--key", number).stdout
    assert "refused" in table
    assert "$0.00 " in table
    assert "\x1b" not in table
    assert max(map(len, table.splitlines())) <= 80


@pytest.mark.slow
def test_follow_prints_a_request_when_it_ends_and_ctrl_c_ends_it_quietly(server: command_line.Server) -> None:
    key = server.ask("keys", "create", "--name", "followed")
    words = ["requests", "--follow", "--json", "--key", str(key["id"]), "--data", str(server.data)]
    command = [sys.executable, "-c", command_line.AT_A_TERMINAL, *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=command_line.environment()
    )
    with process, command_line.ended_with_the_test(process):
        assert process.stdout is not None
        assert process.stderr is not None
        server.chat(key["secret"])
        first = json.loads(process.stdout.readline())
        server.chat(key["secret"])
        second = json.loads(process.stdout.readline())
        assert second["sequence"] > first["sequence"]
        assert (second["key_name"], second["model"], second["status"]) == ("followed", "demo-chat", 200)
        process.send_signal(signal.SIGINT)
        assert process.wait(command_line.WAIT_LIMIT_S) == 0
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_an_answer_of_the_admin_api_that_is_an_error_is_shown_and_exits_with_1(server: command_line.Server) -> None:
    for words, message in (
        (["keys", "show", "999"], "No key has the id 999"),
        (["channels", "test", "nope"], "No channel is called 'nope'"),
        (["accounts", "add", "local"], "local"),
        (["accounts", "show", "..", "--json"], "No account is called '..'"),
        (["keys", "edit", "1", "--rpm", "0"], "rpm: expected a number of at least 1"),
        (["keys", "edit", "1", "--expires-at", "soon"], "expires_at: expected a date"),
    ):
        result = server.invoke(*words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert message in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_an_edit_that_changes_nothing_is_a_usage_error(server: command_line.Server) -> None:
    assert server.invoke("keys", "edit", "1").exit_code == 2
    assert server.invoke("keys", "edit", "1", "--rpm", "many").exit_code == 2


@pytest.mark.slow
def test_a_second_gateway_on_the_folder_is_told_who_runs(server: command_line.Server) -> None:
    result = server.invoke("serve")
    assert result.exit_code == 2
    assert f"process {server.process.pid}" in result.stderr
    assert server.url in result.stderr


@pytest.mark.slow
def test_check_tries_the_channels_of_the_gateway_that_runs(server: command_line.Server, tmp_path: Path) -> None:
    empty = tmp_path / "empty.toml"
    empty.touch()
    result = server.invoke("check", "--config", str(empty))
    assert result.exit_code == 0
    assert "valid" in result.stdout
    report = server.ask("check", "--config", str(empty))
    assert report == {
        "ok": True,
        "problems": [],
        "channels": [
            {"name": "demo", "ok": True, "error": None, "models": len(DEMO_MODELS), "keys": [], "request": None}
        ],
        "unpriced": [],
        "warnings": [],
    }


def test_check_warns_of_a_section_with_a_former_name(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "former.toml"
    config.write_text('[limits]\nprefix = "team"\n')
    result = CliRunner().invoke(main, ["check", "--config", str(config), "--data", str(data)])
    assert "The section [limits] is now called [rate_limits]; the next version has only that name." in result.stderr


def test_models_without_a_price_are_named_where_a_limit_is_set_and_in_a_check(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "unpriced.toml"
    models = ", ".join(f'"mystery-{number}"' for number in range(7))
    config.write_text(
        '[[channel]]\nname = "up"\nprovider = "custom"\nbase_url = "http://127.0.0.1:9/v1"\napi_key = "k"\n'
        f'models = [{models}, "gpt-4o"]\n'
    )
    place = ["--config", str(config), "--data", str(data)]
    free = CliRunner().invoke(main, ["keys", "create", *place])
    assert (free.exit_code, "no price" in free.stderr) == (0, False)
    capped = CliRunner().invoke(main, ["keys", "create", "--quota-usd", "5", *place])
    assert capped.exit_code == 0
    assert len(capped.stdout.split()) == 1, "standard output has only the key"
    assert "7 models have no price: mystery-0, mystery-1, mystery-2, mystery-3, mystery-4, …" in capped.stderr
    assert "7 models have no price" in CliRunner().invoke(main, ["check", *place]).stderr
    listed = CliRunner().invoke(main, ["models", "list", "--unpriced", "--json", *place])
    assert [model["id"] for model in json.loads(listed.stdout)["data"]] == [f"mystery-{at}" for at in range(7)]


@pytest.mark.parametrize("words", [["serve"], ["keys", "create"]])
def test_a_bad_configuration_is_told_one_problem_a_line(words: list[str], config: Path, data: Path) -> None:
    result = CliRunner().invoke(main, [*words, "--config", str(config), "--data", str(data)])
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert len(lines) == 3
    for line, where in zip(lines, ("server.prot", "server.port", "channel[0].provider"), strict=True):
        assert line.startswith(f"{config}: {where}: ")


def test_check_reports_every_problem_of_the_configuration_and_exits_with_1(config: Path, tmp_path: Path) -> None:
    words = ["check", "--config", str(config), "--data", str(tmp_path / "data")]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 3)
    report = CliRunner().invoke(main, [*words, "--json"])
    assert report.exit_code == 1
    reported = {"ok": False, "problems": result.stderr.splitlines(), "channels": [], "unpriced": [], "warnings": []}
    assert json.loads(report.stdout) == reported
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ("tracing", '[tracing]\nendpoint = "http://127.0.0.1:9"'),
        ("alerts", '[[alert]]\nname = "mail"\nurl = "mailtos://user:word@example.com"'),
        ("sso", '[[sign_in]]\nname = "a"\nissuer = "https://a.example"\nclient_id = "b"\nclient_secret = "cc"'),
        ("postgres", '[store]\nurl = "postgresql://127.0.0.1:9/gateway"'),
    ],
)
def test_check_and_doctor_name_an_extra_that_is_not_installed(
    extra: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(text)
    monkeypatch.setitem(sys.modules, MODULES[extra], None)
    for command in ("check", "doctor"):
        words = [command, "--config", str(config), "--data", str(tmp_path / "data")]
        result = CliRunner().invoke(main, words, env={"GATEWAY_DISCOVER": "0"})
        assert result.exit_code == 1
        assert format_install_command(extra) in " ".join(result.output.split()), result.output


@pytest.mark.slow
def test_without_a_gateway_the_commands_open_the_folder_and_let_go_of_it(data: Path, tmp_path: Path) -> None:
    words = [
        ["keys", "create", "--name", "mine"],
        ["keys", "--json"],
        ["keys", "disable", "2"],
        ["keys", "edit", "2", "--rpm", "5", "--json"],
        ["keys", "delete", "1", "--yes", "--json"],
        ["accounts", "add", "team", "--json"],
        ["accounts"],
        ["accounts", "delete", "team", "--yes"],
        ["channels"],
        ["channels", "test", "--json"],
        ["models", "--json"],
        ["requests", "--json"],
        ["requests", "--follow"],
        ["keys", "show", "1"],
    ]
    done = command_line.run_many(tmp_path, *([*command, "--data", str(data)] for command in words))
    results = dict(zip(map(" ".join, words), done, strict=True))
    code, made, notes = results["keys create --name mine"]
    assert (code, made[:3], len(made.splitlines())) == (0, "sk-", 1)
    assert "not shown again" in notes
    assert all(made.strip() not in out + err for _, out, err in done[1:])
    assert [key["name"] for key in json.loads(results["keys --json"][1])["data"]] == ["first", "mine"]
    edited = json.loads(results["keys edit 2 --rpm 5 --json"][1])
    assert (edited["status"], edited["rpm"]) == ("disabled", 5)
    assert json.loads(results["keys delete 1 --yes --json"][1]) == {"id": 1, "deleted": True}
    assert "team" in results["accounts"][1]
    assert json.loads(results["channels test --json"][1])["data"][0]["ok"] is True
    assert json.loads(results["models --json"][1])["data"][0]["channels"] == ["demo"]
    listed = json.loads(results["requests --json"][1])
    assert (listed["data"], listed["more"], listed["newest"]) == ([], False, "0")
    refused = {" ".join(command): code for command, (code, _, _) in zip(words, done, strict=True) if code}
    assert refused == {"requests --follow": 1, "keys show 1": 1}
    assert "no gateway runs" in results["requests --follow"][2]
    assert find_holder(data) is None
    DataFolder(data).close()


@pytest.mark.slow
def test_without_a_gateway_check_tries_the_files_channels_and_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "gateway.toml").write_text(DEAD)
    check, models = command_line.run_many(tmp_path, ["check"], ["models", "--json", "--data", str(tmp_path / "other")])
    assert check[0] == 1
    assert "dead" in check[1]
    assert "failed" in check[1]
    assert "could not be reached" in check[1]
    assert "sk-" not in check[1] + check[2]
    assert not (tmp_path / "data").exists()
    assert json.loads(models[1])["data"][0]["channels"] == ["dead"]


@pytest.mark.slow
def test_a_gateway_that_cannot_start_says_why_without_a_traceback(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "gateway.db").write_bytes(b"this is not a database " * 50)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        in_use, refused, missing = command_line.run_many(
            tmp_path,
            ["serve", "--port", port],
            ["serve", "--port", "0", "--data", str(broken)],
            ["serve", "--config", "nowhere.toml"],
        )
    assert in_use[:2] == [2, ""]
    assert f"Cannot listen on 127.0.0.1:{port}" in in_use[2]
    assert refused[0] == 2
    assert "not a database" in refused[2]
    assert missing == [2, "", "nowhere.toml: No such file or directory\n"]
    assert "Traceback" not in in_use[2] + refused[2]
    assert find_holder(broken) is None


@pytest.mark.slow
def test_ctrl_c_ends_a_gateway_and_its_later_starts_show_no_key(data: Path, tmp_path: Path) -> None:
    command_line.run_many(tmp_path, ["keys", "enable", "1", "--data", str(data)])
    with command_line.serving(data, signal.SIGINT) as later:
        assert later.url in later.greeting
        assert f"base_url  {later.url}/v1" in later.greeting
        assert "gateway keys add" in later.greeting
        assert "sk-" not in later.greeting
    assert "Traceback" not in (tmp_path / "data.log").read_text()
    assert find_holder(data) is None


@pytest.mark.slow
def test_a_command_imports_only_what_it_needs(server: command_line.Server, tmp_path: Path) -> None:
    assert run_afresh(tmp_path, ["--help"], ["serve", "--help"], ["--version"])[1] == set()
    (listed,), heavy = run_afresh(tmp_path, ["keys", "--data", str(server.data)])
    assert listed[0] == 0
    assert heavy == {"aiohttp", "rich.console"}


def test_without_a_command_help_is_printed() -> None:
    for words in ([], ["--help"], ["-h"]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        # What an earlier test has left may be logged to the same stream when it is collected.
        assert any(line.startswith("Usage:") for line in result.stdout.splitlines()), result.stdout
    printed = CliRunner().invoke(main, ["--version"]).stdout.splitlines()
    assert f"gateway, version {__version__}" in printed, printed


def test_every_command_says_what_it_does_and_takes_json() -> None:
    for name, group in main.commands.items():
        words = [name]
        commands = getattr(group, "commands", {"": group})
        for inner in commands:
            result = CliRunner().invoke(main, [*words, *inner.split(), "--help"])
            assert result.exit_code == 0
            assert name in {"completion", "store"} or "--data" in result.stdout
            assert name in {"completion", "serve"} or "--json" in result.stdout


def test_a_group_refuses_a_command_that_it_does_not_have() -> None:
    result = CliRunner().invoke(main, ["keys", "crate"])
    assert result.exit_code == 2
    assert "crate" in result.stderr
