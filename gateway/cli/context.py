"""What every command needs: its gateway and output, its errors, the data folder and the configuration."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gateway.frozen import frozen
from gateway.storage.data_folder import DataFolder

if TYPE_CHECKING:
    from gateway.config.merge import FileConfig

Json = dict[str, Any]


class CliError(click.ClickException):
    """An error message for the operator, without a traceback; the command exits with 1."""

    def show(self, file: Any = None) -> None:
        click.echo(self.message, file=file or sys.stderr)


class StartupError(CliError):
    """A problem that prevents a gateway from starting; the command exits with 2."""

    exit_code = 2


URL_VARIABLE, TOKEN_VARIABLE = "GATEWAY_URL", "GATEWAY_ADMIN_TOKEN"


@frozen
class CliContext:
    """The gateway that a command calls, and the format of its output.

    Attributes:
        config: the configuration file, if any; a gateway that is already running has its own.
        discover: whether a gateway that is started for the command looks for providers if no channel is configured.
        url: the URL of the gateway to call; None: the gateway that runs with the data folder.
        scratch: whether the data folder is temporary.
        busy_wait_s: how long to wait for a process that holds the folder without announcing an address: it is starting,
            or it is another short command.
    """

    data: Path
    config: Path | None
    environ: Mapping[str, str]
    discover: bool = True
    as_json: bool = False
    url: str | None = None
    scratch: bool = False
    busy_wait_s: float = 5.0


def open_folder(data: Path) -> DataFolder:
    """Open and lock the data folder. Raises ``StartupError``, or ``DataFolderLocked``."""
    try:
        return DataFolder(data)
    except OSError as error:
        raise StartupError(f"The data folder {data} cannot be used: {error.strerror}") from None


def load_file_config(path: Path | None, environ: Mapping[str, str]) -> "FileConfig":
    """Read the configuration. Raises ``StartupError`` with all problems, one per line."""
    from gateway.config.loader import ConfigError, read_declared_config  # noqa: PLC0415 - help starts faster without

    try:
        return read_declared_config(path, environ)
    except ConfigError as error:
        raise StartupError(str(error)) from None
