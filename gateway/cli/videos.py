"""The commands about videos: which were asked for, how they come on, and their end."""

# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".
# ruff: noqa: PLC0415 - rich is imported where bars are drawn.

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click

from gateway.cli.admin_client import FOLLOW_EVERY_S, AdminClient, CliContext, CliError, Json, call, find_running, look
from gateway.cli.options import ListByDefault, client_command, running_command
from gateway.cli.output import print_answer
from gateway.cli.output_videos import GONE, print_as_they_change, print_video, print_videos

_MAX_LIVE = 1000
_MAX_NAMED = 100
"""What the admin API takes of ids at a time."""


@click.group(cls=ListByDefault)
def videos() -> None:
    """The jobs that make videos: how they stand, whoever asked for them.

    \b
    Examples:
      gateway videos
      gateway videos --follow
      gateway videos --status failed --account team
      gateway videos show video_0123456789abcdef0123456789abcdef
      gateway videos cancel video_0123456789abcdef0123456789abcdef
    """


@videos.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The last N.", metavar="N")
@click.option("--account", metavar="NAME", help="Only of this account.")
@click.option("--status", metavar="WORD", help="Only with this status, such as processing or failed.")
@click.option("--live", is_flag=True, help="Only those that have not ended.")
@click.option("--follow", "-f", is_flag=True, help="Those that have not ended, and new ones, until all have.")
@client_command
def list_videos(place: CliContext, *, follow: bool, live: bool, **query: Any) -> None:
    """The last videos, newest at the end. HELD is set aside until they end, COST what they did cost."""
    if follow:
        if query["status"]:
            raise click.UsageError("Give either --follow or --status")
        _follow(place, (), query["account"])
        return
    wanted = {**query, "live": "true" if live else None}
    listing = look(place, lambda admin: admin.get("videos", query=wanted))
    print_answer(place, listing, lambda found: print_videos(found[::-1]))


@videos.command("show")
@click.argument("video_id", metavar="ID")
@client_command
def show_video(place: CliContext, video_id: str) -> None:
    """Show everything about the video ID but what it shows."""
    print_answer(place, call(place, "GET", "videos", video_id), print_video)


@videos.command("follow")
@click.argument("video_ids", metavar="[ID]...", nargs=-1)
@click.option("--account", metavar="NAME", help="Only of this account.")
@running_command
def follow_videos(place: CliContext, video_ids: tuple[str, ...], account: str | None) -> None:
    """Watch videos come on until all have ended, or Ctrl-C.

    Without an ID all that have not ended are watched, and new ones as they come. A terminal shows a bar for each;
    anything else is given a line for each change.
    """
    if video_ids and account:
        raise click.UsageError("Give either IDs or --account")
    _follow(place, video_ids, account)


@videos.command("cancel")
@click.argument("video_id", metavar="ID")
@client_command
def cancel_video(place: CliContext, video_id: str) -> None:
    """End the video ID before it is completed: it costs nothing. Its provider is asked to stop where it can be."""
    cancelled = call(place, "POST", "videos", video_id, "cancel")
    print_answer(place, cancelled, lambda _: click.echo(f"The video {video_id} is cancelled."))


def _follow(place: CliContext, video_ids: Sequence[str], account: str | None) -> None:
    if find_running(place.data) is None:
        raise CliError(f"There is nothing to follow: no gateway runs over {place.data}")

    async def work(admin: AdminClient) -> None:
        changes = watch_videos(admin, video_ids, account)
        if place.as_json or not sys.stdout.isatty():
            await print_as_they_change(changes, as_json=place.as_json)
            return
        from gateway.cli.progress import draw_bars

        await draw_bars(changes)

    with contextlib.suppress(KeyboardInterrupt):
        look(place, work)


async def watch_videos(
    admin: AdminClient,
    video_ids: Sequence[str],
    account: str | None = None,
    every_s: float = FOLLOW_EVERY_S,
) -> AsyncIterator[list[Json]]:
    """What has changed of videos, again and again until all have ended: the first time, how each of them stands.

    Those of ``video_ids``; without any, all that have not ended, and those that come meanwhile. What is no more, for no
    provider took it or its caller deleted it, is ``GONE``. Raises ``CliError``, also where an id is nobody's.
    """
    known: dict[str, Json] = {}
    followed = list(dict.fromkeys(video_ids))
    while True:
        found: list[Json] = []
        if not video_ids:
            query = {"live": "true", "order": "asc", "limit": _MAX_LIVE, "account": account}
            found = (await admin.get("videos", query=query))["data"]
            followed += [video["id"] for video in found if video["id"] not in known]
        found += await _find(admin, _leave_out(followed, found))
        changed = [video for video in found if known.get(video["id"]) != video]
        for video_id in _leave_out(followed, found):
            if video_id not in known:
                raise CliError(f"There is no video {video_id}")
            changed.append({**known[video_id], "status": GONE, "live": False})
        known.update((video["id"], video) for video in changed)
        yield changed
        followed = [video_id for video_id in followed if known[video_id]["live"]]
        if not followed:
            return
        await asyncio.sleep(every_s)


def _leave_out(video_ids: Sequence[str], found: Sequence[Json]) -> list[str]:
    """Those of ``video_ids`` that were not found."""
    seen = {video["id"] for video in found}
    return [video_id for video_id in video_ids if video_id not in seen]


async def _find(admin: AdminClient, video_ids: Sequence[str]) -> list[Json]:
    """Those of ``video_ids`` that there are."""
    found: list[Json] = []
    for first in range(0, len(video_ids), _MAX_NAMED):
        ids = ",".join(video_ids[first : first + _MAX_NAMED])
        found += (await admin.get("videos", query={"ids": ids}))["data"]
    return found
