"""The commands about videos, as an operator sees them: listed, shown, cancelled, and followed to their ends."""

import asyncio
import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from rich.console import Console

from gateway.cli.admin_client import open_admin
from gateway.cli.context import CliContext, CliError
from gateway.cli.main import main
from gateway.cli.output_videos import VIDEOS_HINT, format_change, format_status, print_changes, print_videos
from gateway.cli.progress import draw_bars, draw_table
from gateway.cli.videos import watch_videos
from tests.support.cli_operator import Operator, log, sit_down
from tests.support.command_line import AT_A_TERMINAL, WAIT_LIMIT_S, environment
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.started_gateways import StartGateway
from tests.support.table_rows import table_rows
from tests.support.video_scene import await_job, site, submit

__all__ = ["log"]
"""A fixture of every test here, too."""

STRANGER = "video_" + "0" * 32
STEERING = "evil\x1b[31m\r\n[red]model"


async def begin(operator: Operator, prompt: str, *states: str) -> str:
    """The id of a job of that prompt, once it is in one of these states; without any, once it has ended."""
    assert (await submit(operator.gateway, prompt)).status == 200
    return (await await_job(operator.gateway, prompt, *states)).id


@pytest.mark.slow
async def test_videos_are_listed_shown_and_cancelled(gateway_with: StartGateway) -> None:
    end = asyncio.Event()
    slow = Play(polls=("in_progress", end, "completed"))
    async with OpenAiVideos(slow=slow, bad=Play(polls=("failed",))) as up:
        operator = await sit_down(gateway_with, site(up.channel()))
        reported = await operator.type("videos")
        assert (reported.exit_code, reported.stdout, reported.stderr) == (0, "", "No videos recorded.\n")
        ids = [await begin(operator, "bad"), await begin(operator, "good"), await begin(operator, "slow", "processing")]
        bad, good, live = ids
        table = (await operator.see("videos")).splitlines()
        assert [line.split()[1:] for line in table] == [
            ["ID", "MODEL", "STATUS"],
            [bad, "m", "failed", "upstream_error"],
            [good, "m", "completed"],
            [live, "m", "processing", "10%"],
        ]
        wide = (await operator.see("videos", "--limit", "2", width=140)).splitlines()
        assert [line.split()[2:] for line in wide] == [
            ["ACCOUNT", "MODEL", "CHANNEL", "STATUS", "HELD", "COST"],
            ["acme", "m", "up", "completed", "-", "$1.00"],
            ["acme", "m", "up", "processing", "10%", "$1.00", "-"],
        ]
        for words, expected in (
            ((), ids[::-1]),
            (("--live",), [live]),
            (("--status", "failed"), [bad]),
            (("--account", "acme", "--limit", "1"), [live]),
        ):
            assert [video["id"] for video in (await operator.ask("videos", *words))["data"]] == expected
        refused = await operator.type("videos", "--status", "odd")
        assert (refused.exit_code, "'status' must be one of created, " in refused.stderr) == (1, True)

        shown = await operator.see("videos", "show", live)
        fields = dict(line.split("  ", 1) for line in shown.splitlines())
        assert [fields[name].strip() for name in ("status", "held", "upstream id")] == [
            "processing",
            "$1.00",
            up.find("slow").id,
        ]
        assert (await operator.ask("videos", "show", live))["deliveries"] == []
        assert await operator.see("videos", "cancel", live) == f"The video {live} is cancelled.\n"
        again = await operator.type("videos", "cancel", live)
        assert (again.exit_code, again.stdout) == (1, "")
        assert again.stderr.startswith(f"The job {live} has ended")
        for verb in ("show", "cancel", "follow"):
            anonymous = await operator.type("videos", verb, STRANGER)
            assert (anonymous.exit_code, "not found" in anonymous.stderr) == (1, True), anonymous.output
        assert (await operator.type("videos", "follow")).stderr == f"{VIDEOS_HINT}\n"
        end.set()


async def test_a_key_is_given_an_address_to_tell_and_shows_what_signs_it(gateway_with: StartGateway) -> None:
    operator = await sit_down(gateway_with)
    url = "http://127.0.0.1:9/told?token=t"
    made = await operator.ask("keys", "create", "--name", "k", "--webhook-url", url)
    assert made["webhook_url"] == url
    number = str(made["id"])
    assert url in await operator.see("keys", "show", number)
    assert (await operator.ask("keys", "edit", number, "--rpm", "5"))["webhook_url"] == url
    secret = (await operator.see("keys", "webhook-secret", number)).strip()
    assert secret.startswith("whsec_")
    assert await operator.ask("keys", "webhook-secret", number) == {"secret": secret}
    assert (await operator.ask("keys", "edit", number, "--webhook-url", "none"))["webhook_url"] is None
    assert "$0.00" in await operator.see("audit")


@pytest.mark.slow
async def test_on_a_pipe_a_video_is_followed_a_line_a_change_until_it_has_ended(gateway_with: StartGateway) -> None:
    end = asyncio.Event()
    async with OpenAiVideos(Play(polls=("in_progress", end, "completed"))) as up:
        operator = await sit_down(gateway_with, site(up.channel()))
        first = await begin(operator, "one", "processing")
        await begin(operator, "two", "processing")
        asyncio.get_running_loop().call_later(0.3, end.set)
        # Two commands at a time would share their standard output.
        lines = (await operator.see("videos", "follow", first, width=100)).splitlines()
        assert [line.split()[1:4] for line in (lines[0], lines[-1])] == [
            [first, "m", "processing"],
            [first, "m", "completed"],
        ]
        message = await operator.see("videos", "follow", first, "--json", width=5_000)
        assert [json.loads(line)["status"] for line in message.splitlines()] == ["completed"]
        await await_job(operator.gateway, "two")


@pytest.mark.slow
async def test_at_a_terminal_bars_are_drawn_until_ctrl_c_which_ends_them_quietly(gateway_with: StartGateway) -> None:
    end = asyncio.Event()
    async with OpenAiVideos(Play(polls=("in_progress", end, "completed"))) as up:
        operator = await sit_down(gateway_with, site(up.channel()))
        live = await begin(operator, "one", "processing")
        ours, theirs = pty.openpty()
        words = ["videos", "--follow", "--data", str(operator.gateway.folder.path)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", AT_A_TERMINAL, *words),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            env={**environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "10"},
        )
        os.close(theirs)
        async with asyncio.timeout(WAIT_LIMIT_S):
            drawn = ""
            while "10%" not in drawn:
                drawn += (await asyncio.to_thread(os.read, ours, 4096)).decode()
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            errors = await process.stderr.read()
            assert await process.wait() == 0
        os.close(ours)
        assert live in drawn
        assert "━━━" in drawn
        assert errors == b"Waiting for video jobs. Ctrl-C ends the command.\n"
        end.set()
        await await_job(operator.gateway, "one")


def test_without_a_gateway_there_is_nothing_to_follow(tmp_path: Path) -> None:
    for words in (["videos", "follow", STRANGER], ["videos", "--follow"]):
        reported = CliRunner().invoke(main, [*words, "--data", str(tmp_path / "data")])
        assert (reported.exit_code, reported.stdout) == (1, "")
        assert "Nothing to follow: no gateway runs" in reported.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("words", [["follow", STRANGER, "--account", "a"], ["--follow", "--status", "failed"]])
def test_what_says_twice_what_to_follow_is_refused(words: list[str], tmp_path: Path) -> None:
    reported = CliRunner().invoke(main, ["videos", *words, "--data", str(tmp_path)])
    assert (reported.exit_code, "either" in reported.stderr) == (2, True)


# what is followed


def make(name: object, status: str = "processing", progress: int = 0, **more: Any) -> dict[str, Any]:
    """A video as the admin API shows it."""
    return {
        "id": f"video_{name}",
        "status": status,
        "outcome": status if status in {"completed", "failed"} else None,
        "live": status not in {"completed", "failed", "gone"},
        "progress": progress,
        "model": "m",
        "account": "acme",
        "channel": "up",
        "error_code": None,
        "created_at": "2027-01-31T12:00:00Z",
        "held_usd": 0.0,
        "cost_usd": 0.0,
        **more,
    }


@attrs.define
class ScriptedAdminApi:
    """An admin API whose videos stand at each look as the next of ``looks`` says, and in the end as the last does."""

    looks: list[Iterable[dict[str, Any]]]
    asked: list[Mapping[str, Any]] = attrs.Factory(list)
    url: str = ""
    _begun: bool = False

    async def get(self, *path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        assert path == ("videos",)
        self.asked.append(query)
        named = set(query["ids"].split(",")) if "ids" in query else None
        found = [video for video in self.looks[0] if (video["live"] if named is None else video["id"] in named)]
        return {"object": "list", "data": found}

    def go_on(self) -> None:
        if len(self.looks) > 1:
            self.looks.pop(0)


async def watch(api: ScriptedAdminApi, *ids: str) -> list[list[tuple[str, str]]]:
    """Name and status of what has changed, look by look."""
    seen = []
    async with aclosing(watch_videos(api, ids, interval_s=0)) as changes:  # type: ignore[type-var, arg-type]
        async for changed in changes:
            seen.append([(video["id"].removeprefix("video_"), video["status"]) for video in changed])
            api.go_on()
    return seen


async def test_all_that_go_on_are_followed_and_those_that_come_until_the_last_has_ended() -> None:
    api = ScriptedAdminApi(
        [
            [make(1), make(2), make(0, "failed")],
            [make(1), make(2, "completed"), make(3, "created")],
            [make(1), make(2, "completed"), make(3, "queued")],
            [make(1), make(2, "completed"), make(3, "failed")],
            [make(1, "completed")],
            [make(4)],
        ]
    )
    assert await watch(api) == [
        [("1", "processing"), ("2", "processing")],
        [("3", "created"), ("2", "completed")],
        [("3", "queued")],
        [("3", "failed")],
        [("1", "completed")],
    ]


async def test_those_that_are_named_are_followed_and_no_others_once_each() -> None:
    api = ScriptedAdminApi([[make(1), make(2), make(3, "failed")], [make(1, "completed"), make(2)], [make(2)]])
    assert await watch(api, "video_1", "video_3", "video_1") == [
        [("1", "processing"), ("3", "failed")],
        [("1", "completed")],
    ]
    assert api.asked == [{"ids": "video_1,video_3"}, {"ids": "video_1"}]


async def test_what_is_no_more_is_told_as_gone() -> None:
    assert await watch(ScriptedAdminApi([[make(1, "submitting")], []])) == [[("1", "submitting")], [("1", "gone")]]


async def test_an_id_that_is_nobodys_is_told_before_anything_is_followed() -> None:
    with pytest.raises(CliError, match="Video video_2 not found"):
        await watch(ScriptedAdminApi([[make(1)]]), "video_1", "video_2")


async def test_many_are_asked_for_a_hundred_at_a_time() -> None:
    many = [make(number, "completed") for number in range(250)]
    api = ScriptedAdminApi([many])
    assert await watch(api, *(video["id"] for video in many)) == [[(str(n), "completed") for n in range(250)]]
    assert [len(query["ids"].split(",")) for query in api.asked] == [100, 100, 50]


# what is printed of them


@table_rows(
    ("video", "status"),
    [
        (make(1, "created"), "created 0%"),
        (make(1, progress=40), "processing 40%"),
        (make(1, "completed", 100), "completed"),
        (make(1, "failed", 40, error_code="timeout"), "failed timeout"),
        (make(1, "failed", 40, outcome="blocked", error_code="content_policy_violation"), "blocked"),
        (make(1, "gone", 40), "gone"),
    ],
)
def test_a_status_says_how_far_it_is_or_why_not(video: dict[str, Any], status: str) -> None:
    assert format_status(video) == status


def test_a_change_is_one_line_and_steers_no_terminal() -> None:
    video = make(1, "completed", model=STEERING, cost_usd=0.5)
    line = format_change(video, datetime.now(UTC))
    assert line.isprintable()
    assert line.endswith("[red]model completed $0.50")


def test_a_table_of_many_is_no_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "a" * 32
    print_videos([make(name, "failed", model=STEERING * 3, error_code="content_policy_violation"), make(name)])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count(f"video_{name}") == 2
    assert "\x1b" not in out


async def tell(*looks: Sequence[dict[str, Any]]) -> AsyncIterator[Sequence[dict[str, Any]]]:
    for look in looks:
        yield look


async def test_on_a_pipe_only_what_is_seen_to_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    await print_changes(tell([make(1)], [make(1, polls=2)], [make(1, progress=5)]), as_json=False)
    assert [line.rsplit(None, 1)[1] for line in capsys.readouterr().out.splitlines()] == ["0%", "5%"]
    await print_changes(tell([make(1)], [make(1, polls=2)]), as_json=True)
    assert [json.loads(line).get("polls") for line in capsys.readouterr().out.splitlines()] == [None, 2]
    await print_changes(tell([]), as_json=False)
    assert capsys.readouterr().err == f"{VIDEOS_HINT}\n"
    await print_changes(tell([]), as_json=True)
    assert capsys.readouterr() == ("", "")


def terminal(height: int = 20) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None)


def read(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def test_bars_grow_and_whoever_has_ended_leaves_a_line() -> None:
    console = terminal()
    await draw_bars(
        tell([make(1, progress=50), make(2, model=STEERING)], [make(2, "failed", error_code="timeout")]), console
    )
    out = read(console)
    assert "processing 50%" in out
    assert "evil\ufffd" in out
    assert "\x1b[31m" not in out
    last = out[out.index("failed timeout") :]
    assert "video_1" in last
    assert "video_2" not in last.partition("video_1")[2].rpartition("video_1")[2]


def test_there_are_no_more_bars_than_lines() -> None:
    console = terminal()
    console.print(draw_table([make(number) for number in range(30)], 8))
    lines = read(console).splitlines()
    assert [line.split()[0] for line in lines] == [*(f"video_{number}" for number in range(6)), "…"]
    assert lines[-1].strip() == "… and 24 more"


async def test_where_nothing_is_made_the_bars_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    await draw_bars(tell([]), terminal())
    assert capsys.readouterr().err == f"{VIDEOS_HINT}\n"


@pytest.mark.slow
async def test_follow_waits_for_the_first_job_and_goes_on_after_its_end(gateway_with: StartGateway) -> None:
    end = asyncio.Event()
    async with OpenAiVideos(Play(polls=("in_progress", end, "completed"))) as up:
        operator = await sit_down(gateway_with, site(up.channel()))
        context = CliContext(operator.gateway.folder.path, None, {})
        async with (
            open_admin(context) as admin,
            aclosing(watch_videos(admin, (), interval_s=0.01, endless=True)) as changes,  # type: ignore[type-var]
        ):
            assert await anext(changes) == []
            job = await begin(operator, "one", "processing")
            while not (changed := await anext(changes)):
                pass
            assert [(video["id"], video["live"]) for video in changed] == [(job, True)]
            end.set()
            while all(video["live"] for video in changed):
                changed = await anext(changes)
            assert [(video["id"], video["status"]) for video in changed] == [(job, "completed")]
            assert await anext(changes) == []
