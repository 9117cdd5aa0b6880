"""The ``videos`` commands: list, show, follow and cancel video jobs."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".
# ruff: noqa: PLC0415 - rich is slow to import and only needed for progress bars.

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click

from gateway.cli import admin_client
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.objects import call_object
from gateway.cli.options import ListByDefault, client_command, limit_option, running_command
from gateway.cli.output import print_answer
from gateway.cli.output_videos import DELETED_STATE, print_changes, print_video, print_videos

_MAX_LIVE_JOBS = 1000
_MAX_IDS = 100
"""Maximum number of ids in one request to the admin API."""


@click.group(cls=ListByDefault)
def videos() -> None:
    """List, watch and cancel the video jobs of all accounts.

    \b
    Examples:
      gateway videos
      gateway videos --follow
      gateway videos --status failed --account team
      gateway videos show video_0123456789abcdef0123456789abcdef
      gateway videos cancel video_0123456789abcdef0123456789abcdef
    """


@videos.command("list")
@limit_option
@click.option("--account", metavar="NAME", help="Only jobs of this account.")
@click.option("--status", metavar="WORD", help="Only jobs with this status, such as processing or failed.")
@click.option("--live", is_flag=True, help="Only jobs in progress.")
@click.option("--follow", "-f", is_flag=True, help="Watch jobs in progress, and new ones, until Ctrl-C.")
@client_command
def list_videos(context: CliContext, *, follow: bool, live: bool, **query: Any) -> None:
    """List the last video jobs, newest last. HELD is reserved until the job ends; COST is its final cost."""
    if follow:
        if query["status"]:
            raise click.UsageError("Give either --follow or --status")
        _follow(context, (), query["account"], endless=True)
        return
    parameters = {**query, "live": "true" if live else None}
    listing = admin_client.run(context, lambda admin: admin.get("videos", query=parameters))
    print_answer(context, listing, lambda rows: print_videos(rows[::-1]))


@videos.command("show")
@click.argument("video_id", metavar="ID")
@client_command
def show_video(context: CliContext, video_id: str) -> None:
    """Show a video job."""
    print_answer(context, call_object(context, "GET", "videos", video_id), print_video)


@videos.command("follow")
@click.argument("video_ids", metavar="[ID]...", nargs=-1)
@click.option("--account", metavar="NAME", help="Only jobs of this account.")
@running_command
def follow_videos(context: CliContext, video_ids: tuple[str, ...], account: str | None) -> None:
    """Watch video jobs until all have ended, or Ctrl-C.

    Without an ID all jobs in progress are watched, and new ones. A terminal shows progress bars; a pipe gets a line for
    each change.
    """
    if video_ids and account:
        raise click.UsageError("Give either IDs or --account")
    _follow(context, video_ids, account)


@videos.command("cancel")
@click.argument("video_id", metavar="ID")
@client_command
def cancel_video(context: CliContext, video_id: str) -> None:
    """Cancel the video job ID, free of charge, also at its provider if that can cancel jobs."""
    video = call_object(context, "POST", "videos", video_id, "cancel")
    print_answer(context, video, lambda _: click.echo(f"The video {video['id']} is cancelled."))


def _follow(context: CliContext, video_ids: Sequence[str], account: str | None, *, endless: bool = False) -> None:
    admin_client.require_running(context, "follow")
    if endless:
        click.echo("Waiting for video jobs. Ctrl-C ends the command.", err=True)

    async def work(admin: admin_client.AdminClient) -> None:
        changes = watch_videos(admin, video_ids, account, endless=endless)
        if context.as_json or not sys.stdout.isatty():
            await print_changes(changes, as_json=context.as_json)
            return
        from gateway.cli.progress import draw_bars

        await draw_bars(changes)

    with contextlib.suppress(KeyboardInterrupt):
        admin_client.run(context, work)


async def watch_videos(
    admin: admin_client.AdminClient,
    video_ids: Sequence[str],
    account: str | None = None,
    interval_s: float = admin_client.FOLLOW_INTERVAL_S,
    *,
    endless: bool = False,
) -> AsyncIterator[list[Json]]:
    """Yield all videos, then repeatedly the changed videos, until all have ended.

    Without ``video_ids``, watch all jobs in progress and new jobs. With ``endless``, continue after all have ended. A
    video that was deleted, or that no provider accepted, gets the status ``DELETED_STATE``. Raises ``CliError``, also
    for an unknown id.
    """
    last_seen: dict[str, Json] = {}
    followed_ids = list(dict.fromkeys(video_ids))
    while True:
        found_videos: list[Json] = []
        if not video_ids:
            query = {"live": "true", "order": "asc", "limit": _MAX_LIVE_JOBS, "account": account}
            found_videos = (await admin.get("videos", query=query))["data"]
            followed_ids += [video["id"] for video in found_videos if video["id"] not in last_seen]
        found_videos += await _get_videos(admin, _list_missing_ids(followed_ids, found_videos))
        changed_videos = [video for video in found_videos if last_seen.get(video["id"]) != video]
        for video_id in _list_missing_ids(followed_ids, found_videos):
            if video_id not in last_seen:
                raise CliError(f"Video {video_id} not found")
            changed_videos.append({**last_seen[video_id], "status": DELETED_STATE, "live": False})
        last_seen.update((video["id"], video) for video in changed_videos)
        yield changed_videos
        followed_ids = [video_id for video_id in followed_ids if last_seen[video_id]["live"]]
        last_seen = {video_id: last_seen[video_id] for video_id in followed_ids}
        if not followed_ids and not endless:
            return
        await asyncio.sleep(interval_s)


def _list_missing_ids(video_ids: Sequence[str], found_videos: Sequence[Json]) -> list[str]:
    known_ids = {video["id"] for video in found_videos}
    return [video_id for video_id in video_ids if video_id not in known_ids]


async def _get_videos(admin: admin_client.AdminClient, video_ids: Sequence[str]) -> list[Json]:
    found_videos: list[Json] = []
    for start in range(0, len(video_ids), _MAX_IDS):
        ids = ",".join(video_ids[start : start + _MAX_IDS])
        found_videos += (await admin.get("videos", query={"ids": ids}))["data"]
    return found_videos
