"""Prints video jobs: a table, one job with its webhook deliveries, or one line for each change."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import click

from gateway.cli.output import print_fields, print_json
from gateway.cli.table import Column, print_table
from gateway.cli.text import Json, clean, format_moment, format_outcome, format_usd, format_value

DELETED_STATE = "gone"
"""The status shown for a followed video job that no longer exists."""
VIDEOS_HINT = "No videos in progress."
_MODEL_WIDTH = 16


def format_status(video: Json) -> str:
    """Format a video's status: ``processing 40%``, ``failed timeout``, ``blocked``, ``completed``."""
    if video["live"]:
        return f"{video['status']} {video['progress']}%"
    return format_outcome(video) if video["outcome"] else video["status"]


def _format_cost(video: Json) -> str:
    return format_usd(video["cost_usd"] if video["status"] == "completed" else None)


VIDEOS = (
    Column("TIME", lambda video: format_moment(video["created_at"])),
    Column("ID", "id"),
    Column("ACCOUNT", "account", drop=3),
    Column("MODEL", "model", shrinks=True, width=8),
    Column("CHANNEL", "channel", drop=4),
    Column("STATUS", format_status, shrinks=True, width=21, status=True),
    Column("HELD", lambda video: format_usd(video["held_usd"] or None), align_right=True, drop=2),
    Column("COST", _format_cost, align_right=True, drop=1),
)
DELIVERIES = (
    Column("TIME", lambda delivery: format_moment(delivery["created_at"])),
    Column("DELIVERY", "event"),
    Column("TO", "url", shrinks=True, width=16),
    Column("STATUS", "status", status=True),
    Column("ATTEMPTS", "attempts", align_right=True),
    Column("ANSWER", lambda delivery: format_value(delivery["answer"] or delivery["error"]), shrinks=True, width=12),
)


def print_videos(videos: Sequence[Json]) -> None:
    """Print a table of videos."""
    print_table(VIDEOS, videos, "No videos recorded.")


def print_video(video: Json) -> None:
    """Print one video and its webhook deliveries."""
    print_fields({name: value for name, value in video.items() if name != "deliveries"})
    if video["deliveries"]:
        click.echo()
        print_table(DELIVERIES, video["deliveries"], "")


def format_change(video: Json, now: datetime) -> str:
    """Format the current status of a video on one line."""
    cost = f" {format_usd(video['cost_usd'])}" if video["status"] == "completed" else ""
    moment = format_moment(int(now.timestamp() * 1000), now)
    return clean(f"{moment} {video['id']} {video['model']:<{_MODEL_WIDTH}} {format_status(video)}{cost}")


async def print_changes(changes: AsyncIterator[Sequence[Json]], *, as_json: bool) -> None:
    """Print a line for each change until there are no more."""
    printed_statuses: dict[str, str] = {}
    async for changed_videos in changes:
        for video in changed_videos:
            if as_json:
                print_json(video, on_one_line=True)
            elif printed_statuses.get(video["id"]) != format_status(video):
                printed_statuses[video["id"]] = format_status(video)
                click.echo(format_change(video, datetime.now(UTC)))
    if not printed_statuses and not as_json:
        click.echo(VIDEOS_HINT, err=True)
