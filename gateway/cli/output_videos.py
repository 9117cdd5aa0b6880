"""What the command prints for people about videos: tables, one with all its fields, and a line for each change."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import click

from gateway.cli.output import (
    ABSENT,
    Cells,
    Json,
    clean,
    format_moment,
    format_usd,
    is_narrow,
    print_cells,
    print_fields,
    print_json,
)

GONE = "gone"
"""The status of a video that was followed and is no more."""
NOTHING = "No video is being made."
_WHERE_WIDE = ("ACCOUNT", "CHANNEL", ">HELD", ">COST")
_MODEL_WIDTH = 16


def print_videos(videos: Sequence[Json]) -> None:
    """A table of videos; an id, which is there to be copied, is not folded."""
    now = datetime.now(UTC)
    cells: list[Cells] = [
        {
            "TIME": format_moment(_read_ms(video["created_at"]), now),
            ">ID": video["id"],
            "ACCOUNT": video["account"],
            "MODEL": video["model"],
            "CHANNEL": video["channel"] or ABSENT,
            "STATUS": format_status(video),
            ">HELD": format_usd(video["held_usd"] or None),
            ">COST": format_usd(video["cost_usd"] if video["status"] == "completed" else None),
        }
        for video in videos
    ]
    if is_narrow():
        cells = [{name: text for name, text in cell.items() if name not in _WHERE_WIDE} for cell in cells]
    print_cells(cells, "No video is recorded.", gap=1)


def print_video(video: Json) -> None:
    """One video, and every telling of its end."""
    print_fields({name: value for name, value in video.items() if name != "deliveries"})
    if not video["deliveries"]:
        return
    click.echo()
    now = datetime.now(UTC)
    print_cells(
        [
            {
                "TIME": format_moment(_read_ms(told["created_at"]), now),
                "DELIVERY": told["event"],
                "TO": told["url"],
                "STATUS": told["status"],
                ">ATTEMPTS": str(told["attempts"]),
                "ANSWER": str(told["answer"] or told["error"] or ABSENT),
            }
            for told in video["deliveries"]
        ],
        "",
    )


def format_status(video: Json) -> str:
    """``processing 40%``, ``failed timeout``, ``completed``."""
    if video["live"]:
        return f"{video['status']} {video['progress']}%"
    return f"{video['status']} {video['error_code'] or ''}".rstrip()


def format_change(video: Json, now: datetime) -> str:
    """A line about how a video stands now."""
    cost = f" {format_usd(video['cost_usd'])}" if video["status"] == "completed" else ""
    moment = format_moment(int(now.timestamp() * 1000), now)
    return clean(f"{moment} {video['id']} {video['model']:<{_MODEL_WIDTH}} {format_status(video)}{cost}")


async def print_as_they_change(changes: AsyncIterator[Sequence[Json]], *, as_json: bool) -> None:
    """A line for each change, until there are no more."""
    told: dict[str, str] = {}
    async for changed in changes:
        for video in changed:
            if as_json:
                print_json(video, lines=True)
            elif told.get(video["id"]) != format_status(video):
                told[video["id"]] = format_status(video)
                click.echo(format_change(video, datetime.now(UTC)))
    if not told and not as_json:
        click.echo(NOTHING, err=True)


def _read_ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)
