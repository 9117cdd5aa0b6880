"""Runs every check of a gateway, from its settings to its port."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from gateway.config.extras import list_missing_extras
from gateway.config.loader import ConfigError, read_declared_config
from gateway.config.merge import FileConfig
from gateway.config.schema import Config
from gateway.doctor.bodies_checks import check_kept_bodies
from gateway.doctor.database_checks import check_database
from gateway.doctor.finding import Finding
from gateway.doctor.folder_checks import check_folder, check_journal, check_space, check_unstorable
from gateway.doctor.limits_check import check_limits
from gateway.doctor.media_checks import check_media
from gateway.doctor.network_checks import check_certificate, check_clock, check_port
from gateway.doctor.postgres_check import check_server
from gateway.doctor.route_checks import check_maps
from gateway.doctor.sink_checks import check_sinks
from gateway.storage.data_folder import find_database, find_holder, is_used


def examine(data: Path, config_path: Path | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings of all checks for the data folder ``data``. Nothing of the gateway is changed.

    Only in a bucket for media an object is written, and deleted again.
    """
    label = str(config_path) if config_path else "no file: defaults and environment"
    try:
        file_config = read_declared_config(config_path, environ)
        yield Finding("settings", "ok", f"The configuration is valid ({label})")
    except ConfigError as error:
        file_config = FileConfig(Config())
        fix = "Correct it; until then the other checks use the defaults"
        yield from (Finding("settings", "problem", problem, fix) for problem in str(error).splitlines())
    config = file_config.config
    yield from check_maps(config)
    for problem in list_missing_extras(config):
        yield Finding("settings", "problem", problem, "Install it where the gateway is installed, and restart")
    database = find_database(data, config.store.url)
    if not is_used(data) and (config.store.is_postgres or not database.exists()):
        text = f"No gateway has used the data folder {data}"
        yield Finding("folder", "problem", text, "Use --data or GATEWAY_DATA, or start one: gateway serve")
        yield from check_port(config.server, None)
        return
    yield from check_folder(data)
    if config.store.is_postgres:
        yield from check_server(config.store.url)
    else:
        yield from check_database(data, database, file_config)
    yield from check_journal(data)
    yield from check_unstorable(data)
    yield from check_space(data, database)
    yield from check_kept_bodies(data, None if config.store.is_postgres else database, config)
    yield from check_media(config)
    yield from check_clock(config, data, database)
    yield from check_limits(config)
    yield from check_sinks(config, database)
    yield from check_certificate(config.server)
    yield from check_port(config.server, find_holder(data))
