"""Progress bars of running video jobs, and one line for each finished job."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.cli.output_videos import VIDEOS_HINT, format_change, format_status
from gateway.cli.text import Json, clean

_MODEL_WIDTH = 16
_MIN_BAR_CHARS = 10
_FULL_PERCENT = 100


async def draw_bars(changes: AsyncIterator[Sequence[Json]], console: Console | None = None) -> None:
    """Draw progress bars until there are no more changes."""
    console = console or Console(highlight=False)
    running_videos: dict[str, Json] = {}
    has_videos = False
    with Live(console=console, auto_refresh=False) as screen:
        async for changed_videos in changes:
            has_videos = has_videos or bool(changed_videos)
            running_videos.update((video["id"], video) for video in changed_videos if video["live"])
            for video in changed_videos:
                if not video["live"]:
                    running_videos.pop(video["id"], None)
                    console.print(Text(format_change(video, datetime.now(UTC))), soft_wrap=True)
            screen.update(draw_table(list(running_videos.values()), console.size.height), refresh=True)
    if not has_videos:
        click.echo(VIDEOS_HINT, err=True)


def draw_table(videos: Sequence[Json], height: int) -> Group:
    """Return a table of bars that fits into ``height`` lines, with the number of bars left out."""
    table = Table.grid(padding=(0, 1, 0, 0), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, max_width=_MODEL_WIDTH, overflow="ellipsis")
    table.add_column(ratio=1, min_width=_MIN_BAR_CHARS)
    table.add_column(no_wrap=True)
    max_rows = max(1, height - 2)
    for video in videos[:max_rows]:
        bar = ProgressBar(total=_FULL_PERCENT, completed=video["progress"])
        table.add_row(video["id"], Text(clean(video["model"])), bar, Text(format_status(video)))
    hidden_count = len(videos) - max_rows
    return Group(table, Text(f"… and {hidden_count} more")) if hidden_count > 0 else Group(table)
