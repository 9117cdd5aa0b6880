"""Synonyms of command names for users of other tools: each group has one verb per action, and accepts others."""

import click

_SYNONYMS = (
    ("add", "create", "new", "make", "invite"),
    ("delete", "remove", "rm", "del"),
    ("disable", "revoke", "block", "suspend"),
    ("enable", "activate", "unblock"),
    ("list", "ls"),
    ("show", "get", "view", "info"),
    ("edit", "update", "change", "modify", "set"),
)
"""Groups of synonymous verbs. The first verb that a command group has is used."""
_REPLACEMENTS = {
    "status": ("health",),
    "logs": ("requests", "--follow"),
    "log": ("requests", "--follow"),
    "config": ("check",),
    "start": ("serve",),
    "version": ("--version",),
}
"""Replacements for commands that do not exist."""
_STOP_HINT = "A gateway stops at Ctrl-C, or at SIGTERM (systemd: systemctl stop gateway). No command stops it"


def find_verb(group: click.Group, name: str) -> str | None:
    """Return the verb of ``group`` synonymous with ``name``; None if there is no such verb."""
    for verbs in _SYNONYMS:
        if name in verbs:
            return next((verb for verb in verbs if verb in group.commands), None)
    return None


def replace_command(group: click.Group, args: list[str]) -> list[str]:
    """Replace another tool's command name in the arguments. Raises ``click.UsageError`` for ``stop``."""
    if not args or args[0] in group.commands:
        return args
    if args[0] == "help":
        return [*args[1:], "--help"]
    if args[0] == "stop":
        raise click.UsageError(_STOP_HINT)
    return [*_REPLACEMENTS.get(args[0], args[:1]), *args[1:]]
