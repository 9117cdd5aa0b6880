"""The commands about the gateway that runs: how it is doing, and which calls are under way in it."""
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

from collections.abc import Sequence

import click

from gateway.cli.admin_client import CliContext, CliError, Json, call, find_running
from gateway.cli.options import ListByDefault, exit_unless, running_command
from gateway.cli.output import ABSENT, Cells, is_narrow, print_answer, print_cells, print_fields

_UNITS = ("KB", "MB", "GB", "TB")
_STEP = 1024
_WHOLE = 100
_LONG = ((86_400, "d"), (3_600, "h"), (60, "min"))


@click.command(short_help="How is the gateway doing?")
@running_command
def health(place: CliContext) -> None:
    """How is the gateway doing that runs: its memory, its event loop, its store, and what waits?

    The event loop is late where something keeps it busy: then every call waits. Exits with 1 where requests cannot be
    recorded at the moment.

    \b
    Examples:
      gateway health
      gateway health --json
    """
    told = _ask(place, "health")
    print_answer(place, told, print_health)
    exit_unless(told["store"]["writable"] and not told["queue"]["failing"])


@click.group(cls=ListByDefault)
def running() -> None:
    """The calls under way.

    \b
    Examples:
      gateway running
      gateway running cancel req_0123456789abcdef01234567
    """


@running.command("list")
@running_command
def list_running(place: CliContext) -> None:
    """Every call under way, the longest first. PHASE is 'reading' its body, 'waiting', or 'streaming' its answer."""
    print_answer(place, _ask(place, "running"), print_running)


@running.command("cancel")
@click.argument("request_id", metavar="ID")
@running_command
def cancel_running(place: CliContext, request_id: str) -> None:
    """End the call ID: its provider is left at once, and it is charged for what has been delivered."""
    _need_running(place)
    answer = call(place, "POST", "running", request_id, "cancel")
    print_answer(place, answer, lambda _: click.echo(f"The call {request_id} was cancelled."))


def _ask(place: CliContext, path: str) -> Json:
    _need_running(place)
    return call(place, "GET", path)


def _need_running(place: CliContext) -> None:
    if find_running(place.data) is None:
        raise CliError(f"No gateway runs over {place.data}")


def print_running(calls: Sequence[Json]) -> None:
    """A table of calls under way; a narrow terminal has no room for where they come from."""
    left_out = {"ACCOUNT", "FROM"} if is_narrow() else set()
    cells = [_format_call(one) for one in calls]
    shown = [{title: text for title, text in cell.items() if title not in left_out} for cell in cells]
    print_cells(shown, "No call is under way.", rare=("FROM",))


def _format_call(one: Json) -> Cells:
    again = f" ({one['attempts']} attempts)" if one["attempts"] > 1 else ""
    return {
        "ID": one["id"],
        "ACCOUNT": one["account"],
        "KEY": one["key_name"],
        "MODEL": one["model"] or ABSENT,
        "CHANNEL": (one["channel"] or ABSENT) + again,
        "PHASE": one["phase"],
        ">FOR": format_duration(one["running_ms"] / 1000),
        "FROM": one["address"] or ABSENT,
    }


def print_health(told: Json) -> None:
    """How a gateway is doing, a line each."""
    lag, store, queue = told["loop_lag_ms"], told["store"], told["queue"]
    cpu = f"{told['cpu_s']:.1f} s ({told['cpu_s'] / max(told['uptime_s'], 1) * 100:.1f} % of a core)"
    commit = "none yet" if store["last_commit_ms"] is None else f"{store['last_commit_ms']:g} ms"
    print_fields(
        {
            "version": f"{told['version']}, Python {told['python']}, process {told['pid']}",
            "up": f"{format_duration(told['uptime_s'])}, since {told['started_at']}",
            "memory": write_bytes(told["memory_bytes"]),
            "processor": cpu,
            "event loop": f"late by {lag['p50']:.1f} ms (p50), {lag['p99']:.1f} ms (p99), {lag['max']:.1f} ms (most)",
            "under way": f"{told['running']} calls, {told['connections']} connections, {told['tasks']} tasks, "
            f"{told['open_files'] or '?'} open files",
            "store": f"{write_bytes(store['bytes'])} and {write_bytes(store['wal_bytes'])} to be folded in; "
            f"schema {store['schema']}; {'' if store['writable'] else 'NOT '}writable; last commit {commit}",
            "queue": f"{queue['waiting_rows']} rows wait{'; THE STORE REFUSES THEM' if queue['failing'] else ''}",
            "journal": write_bytes(told["journal_bytes"]),
            "media": _format_folder(told["media"]),
            "videos": f"{told['videos']['open']} under way; {_format_folder(told['videos']['kept'])}",
            "channels": ", ".join(f"{count} {state}" for state, count in told["channels"].items() if count),
        },
    )


def _format_folder(found: Json | None) -> str:
    return "?" if found is None else f"{found['files']} files, {write_bytes(found['bytes'])}"


def write_bytes(size: int) -> str:
    """``900 B``, ``1.4 KB``, ``102 MB``: of 1,024 each."""
    if size < _STEP:
        return f"{size} B"
    power = next((power for power in range(1, len(_UNITS)) if size < _STEP ** (power + 1)), len(_UNITS))
    amount = size / _STEP**power
    return f"{amount:.{0 if amount >= _WHOLE else 1}f} {_UNITS[power - 1]}"


def format_duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 5 s``, ``2 d 4 h``: the two largest units."""
    whole = int(seconds)
    if whole < 10:  # noqa: PLR2004 - below it the tenths tell something
        return f"{seconds:.1f} s"
    parts: list[str] = []
    for size, unit in (*_LONG, (1, "s")):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
