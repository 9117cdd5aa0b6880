"""Names of commands that users of other tools type: each group has one verb for an action, and understands others."""

import click

_VERBS = (
    ("add", "create", "new", "make", "invite"),
    ("delete", "remove", "rm", "del"),
    ("disable", "revoke", "block", "suspend"),
    ("enable", "activate", "unblock"),
    ("list", "ls"),
    ("show", "get", "view", "info"),
    ("edit", "update", "change", "modify", "set"),
)
"""Verbs of the same meaning; the first one that a group has is taken."""
_INSTEAD = {
    "status": ("health",),
    "logs": ("requests", "--follow"),
    "log": ("requests", "--follow"),
    "config": ("check",),
    "start": ("serve",),
    "version": ("--version",),
}
"""What is meant by a command that does not exist."""
_STOP = "A gateway stops at Ctrl-C, or at SIGTERM (systemd: systemctl stop gateway). No command stops it"


def find_verb(group: click.Group, name: str) -> str | None:
    """Return the verb of ``group`` that means ``name``; None if it has none."""
    for verbs in _VERBS:
        if name in verbs:
            return next((verb for verb in verbs if verb in group.commands), None)
    return None


def replace_command(group: click.Group, args: list[str]) -> list[str]:
    """Return the arguments with the command that is meant. Raises ``click.UsageError`` for ``stop``."""
    if not args or args[0] in group.commands:
        return args
    if args[0] == "help":
        return [*args[1:], "--help"]
    if args[0] == "stop":
        raise click.UsageError(_STOP)
    return [*_INSTEAD.get(args[0], args[:1]), *args[1:]]
