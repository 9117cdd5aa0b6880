"""``gateway serve``: runs the gateway."""
# ruff: noqa: PLC0415 - the parser and the server are imported when the command runs, which keeps help texts fast.
# ruff: noqa: D301 - the backspace in a docstring is click's mark for "do not wrap".

import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from gateway.cli.context import Json, StartupError, load_file_config, open_folder
from gateway.cli.late_certificates import import_aiohttp
from gateway.cli.options import config_option, data_option, find_config, may_discover
from gateway.cli.startup_message import print_startup_message
from gateway.storage.data_folder import DATABASE, SECRETS, DataFolder, DataFolderDamaged, DataFolderLocked

if TYPE_CHECKING:
    from gateway.config.merge import FileConfig
    from gateway.domain.setting import Source
    from gateway.log import LogFormat
    from gateway.options import StartupInfo

_START_THRESHOLDS = (10_000, 1_000, 1_000)
"""The garbage collector looks at each object once until ``gateway.serve`` sets other thresholds: what modules define
stays, and two collections of all objects took 8 % of a start's CPU time. Without any collection, garbage would lie
between the objects that stay, and each request would cost more as long as the process runs."""


@click.command()
@config_option
@click.option("--host", help="Address to listen on; 0.0.0.0: all.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port to listen on; 0: any free one.  [default: 8080]")
@click.option(
    "--renew-secret",
    "renew",
    multiple=True,
    type=click.Choice(list(SECRETS)),
    help="Create this file of the data folder again if it is lost; what depends on the old one is lost.",
)
@click.option("--verbose", "-v", is_flag=True, help="Log also the requests of the console and the admin API.")
@data_option
def serve(
    config_path: Path | None, host: str | None, port: int | None, *, renew: tuple[str, ...], verbose: bool, data: Path
) -> None:
    """Run the gateway until Ctrl-C or SIGTERM.

    If no channel is configured, the gateway uses provider keys of the environment (OPENAI_API_KEY, …) and model servers
    on this machine, unless GATEWAY_DISCOVER=0; if there are none, a built-in demo.

    \b
    Examples:
      gateway serve
      gateway serve --config /etc/gateway.toml --data /var/lib/gateway
      gateway serve --host 0.0.0.0 --port 9000
    """
    gc.set_threshold(*_START_THRESHOLDS)
    import_aiohttp()
    from gateway.config.exposure import check_secrets
    from gateway.config.loader import read_declared_config

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # blocked until serve.py handles the signal
    environ = _find_environ()
    path = find_config(config_path)
    file_config = _set_address(load_file_config(path, environ), host, port)

    def reload_config() -> "FileConfig":
        # If there was no file at the start, use a default file created since then.
        new_file_config = _set_address(read_declared_config(path or find_config(None), environ), host, port)
        check_secrets(new_file_config.config, folder.admin_token())
        return new_file_config

    is_first_start = not (data / DATABASE).exists()
    try:
        folder = open_folder(data)
    except DataFolderLocked as error:
        raise StartupError(str(error)) from None
    with contextlib.closing(folder):
        print_greeting = _start_log(
            file_config.config.server.log_format, is_first_start=is_first_start, verbose=verbose
        )
        _serve(folder, file_config, reload_config, renew, print_greeting)


def _find_environ() -> MutableMapping[str, str]:
    environ: MutableMapping[str, str] = click.get_current_context().find_root().obj  # set by ``main``
    return environ


def _start_log(log_format: "LogFormat", *, is_first_start: bool, verbose: bool) -> Callable[[str, "StartupInfo"], None]:
    """Set up the log, and return the function that prints the startup message."""
    from gateway.log import configure_log

    level = logging.DEBUG if verbose else logging.INFO
    is_quiet = is_first_start and not verbose and sys.stderr.isatty()
    configure_log(log_format, logging.WARNING if is_quiet else level)

    def greet(address: str, info: "StartupInfo") -> None:
        print_startup_message(address, info)
        configure_log(log_format, level)

    return greet


def _serve(
    folder: DataFolder,
    file_config: "FileConfig",
    reload_config: Callable[[], "FileConfig"],
    renew: tuple[str, ...],
    print_greeting: Callable[[str, "StartupInfo"], None],
) -> None:
    """Serve until a signal stops the gateway. Raises ``StartupError``."""
    from gateway.config.certificate import CertificateError, open_certificate
    from gateway.config.exposure import check_secrets
    from gateway.config.loader import ConfigError
    from gateway.options import AppOptions
    from gateway.serve import PortInUse
    from gateway.serve import run as run_server
    from gateway.storage.database import DatabaseStartupError
    from gateway.systemd import find_manager

    config = file_config.config
    environ = _find_environ()
    options = AppOptions(
        config,
        folder,
        environ,
        discover=may_discover(environ),
        sources=file_config.sources,
        read_config=reload_config,
        renew_secrets=renew,
    )
    try:
        check_secrets(config, folder.admin_token())
        certificate = open_certificate(config.server.tls_certificate, config.server.tls_key)
        run_server(attrs.evolve(options, certificate=certificate), find_manager(environ), print_greeting)
    except (ConfigError, CertificateError, PortInUse, DatabaseStartupError, DataFolderDamaged) as error:
        raise StartupError(str(error)) from None


def _set_address(file_config: "FileConfig", host: str | None, port: int | None) -> "FileConfig":
    """Apply the options ``--host`` and ``--port``; None means not given."""
    options: Json = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    sources: dict[str, Source] = dict.fromkeys((f"server.{name}" for name in options), "environment")
    config = attrs.evolve(file_config.config, server=attrs.evolve(file_config.config.server, **options))
    return attrs.evolve(file_config, config=config, sources={**file_config.sources, **sources})
