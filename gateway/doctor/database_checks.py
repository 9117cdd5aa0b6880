"""Checks of the database: integrity, schema, the secrets that it depends on, and stored settings."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import orjson

from gateway.auth import totp
from gateway.config.merge import FileConfig, merge_stored_settings
from gateway.doctor.finding import Finding
from gateway.storage import channels
from gateway.storage.data_folder import (
    PEPPER_BYTES,
    SECRETS,
    DataFolderDamaged,
    check_database_present,
    describe_remedy,
)
from gateway.storage.encryption import DecryptionFailed, SecretBox
from gateway.storage.identity import MASTER_KEY_NAME, fingerprint
from gateway.storage.integrity_check import MAX_PROBLEMS, build_read_only_uri, is_foreign, read_problems
from gateway.storage.schema import REVISION
from gateway.storage.schema_version import describe_newer, parse_user_version

_RESTORE_FIX = "Restore a backup into a new data folder (gateway restore FILE --data NEW)"
_SAME_BACKUP_FIX = "Restore the database and the files beside it from one backup"


def check_database(data: Path, database: Path, file_config: FileConfig) -> Iterator[Finding]:
    """Check the database, and the secret files that it depends on. If it is damaged, check only the secret files."""
    master_key = bytes.fromhex(file_config.config.store.master_key)
    try:
        check_database_present(data, database)
        with closing(sqlite3.connect(build_read_only_uri(database), uri=True)) as connection:
            findings = [*_check_integrity(database, connection)]
            yield from findings
            if all(finding.state == "ok" for finding in findings):
                yield from _check_contents(data, connection, file_config, master_key)
                return
    except DataFolderDamaged as error:
        yield Finding("database", "problem", str(error), _RESTORE_FIX)
    except sqlite3.Error as error:
        fix = f"{_RESTORE_FIX}. What can be saved from a damaged file, sqlite3's command .recover saves"
        yield Finding("database", "problem", f"The database {database} cannot be read: {error}", fix)
    secrets_read = _read_secrets(data, master_key)
    yield from (finding for finding in secrets_read.values() if isinstance(finding, Finding))
    yield Finding("secrets", "skipped", "Whether the secrets are those of the database could not be checked")


def _check_integrity(database: Path, connection: sqlite3.Connection) -> Iterator[Finding]:
    if is_foreign(connection):
        fix = "Name the gateway's own database (store.url), or restore it there"
        yield Finding("database", "problem", f"{database} is the database of another program", fix)
        return
    if problems := read_problems(connection, f"PRAGMA quick_check({MAX_PROBLEMS})"):
        yield Finding("database", "problem", f"The database {database} is damaged: {'; '.join(problems)}", _RESTORE_FIX)
        return
    if broken_tables := sorted({row[0] for row in connection.execute("PRAGMA foreign_key_check")}):
        text = f"Rows of {', '.join(broken_tables)} refer to rows that are missing"
        yield Finding("database", "problem", f"The database {database} is damaged: {text}", _RESTORE_FIX)
        return
    yield Finding("database", "ok", f"The database {database} is undamaged")


def _check_contents(
    data: Path, connection: sqlite3.Connection, file_config: FileConfig, master_key: bytes
) -> Iterator[Finding]:
    schema = str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])
    if schema > REVISION:
        version = parse_user_version(connection.execute("PRAGMA user_version").fetchone()[0])
        yield Finding("schema", "problem", f"The database is {describe_newer(schema, version)}", "Install that version")
    elif schema < REVISION:
        text = f"The database has schema {schema}: the next start brings it to {REVISION}"
        yield Finding("schema", "warning", text, "Back it up first: gateway backup FILE")
    else:
        yield Finding("schema", "ok", f"The database has schema {schema}, as this version")
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    yield from _check_secrets(data, connection, tables, master_key)
    if "settings" in tables:
        yield from _check_stored_settings(connection, file_config)


def _check_secrets(
    data: Path, connection: sqlite3.Connection, tables: set[str], master_key: bytes
) -> Iterator[Finding]:
    """Check that every secret exists and is the database's, and that the master key decrypts channels and members."""
    secrets_read = _read_secrets(data, master_key)
    known_fingerprints: Mapping[str, str] = {}
    if "fingerprints" in tables:
        known_fingerprints = dict(connection.execute("SELECT name, fingerprint FROM fingerprints").fetchall())
    findings = [secret for secret in secrets_read.values() if isinstance(secret, Finding)]
    for name, secret in secrets_read.items():
        if (
            isinstance(secret, bytes)
            and known_fingerprints.get(name, file_print := fingerprint(name, secret)) != file_print
        ):
            text = f"The secret {name} is not the one that the database was made with: {SECRETS[name]}"
            findings.append(Finding("secrets", "problem", text, _SAME_BACKUP_FIX))
    master = secrets_read[MASTER_KEY_NAME]
    if isinstance(master, bytes):
        findings += _find_unreadable_secrets(connection, tables, SecretBox(master))
    yield from findings or [Finding("secrets", "ok", "Every secret is there and opens what the database has sealed")]


def _find_unreadable_secrets(connection: sqlite3.Connection, tables: set[str], box: SecretBox) -> Iterator[Finding]:
    """Yield each channel and member whose encrypted value cannot be decrypted."""
    sealed_values = [
        (
            "channels",
            "SELECT id, name, sealed FROM channels",
            box.derive(channels.PURPOSE),
            channels.build_associated_data,
        ),
        (
            "members",
            "SELECT id, name, totp FROM members WHERE totp NOT NULL",
            box.derive(totp.PURPOSE),
            totp.build_associated_data,
        ),
    ]
    for table, query, sealed_box, build_context in sealed_values:
        for row_id, name, value in connection.execute(query) if table in tables else ():
            try:
                sealed_box.open(value, context=build_context(row_id))
            except DecryptionFailed:
                text = f"What is sealed for {name!r} of {table} cannot be opened with {MASTER_KEY_NAME}"
                yield Finding("secrets", "problem", text, _SAME_BACKUP_FIX)


def _read_secrets(data: Path, master_key: bytes) -> dict[str, bytes | Finding]:
    secrets_read: dict[str, bytes | Finding] = {MASTER_KEY_NAME: master_key} if master_key else {}
    for name in SECRETS.keys() - secrets_read.keys():
        path = data / name
        try:
            content = path.read_bytes()
        except OSError as error:
            text = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            secrets_read[name] = Finding("secrets", "problem", f"{path} {text}", describe_remedy(name))
            continue
        secrets_read[name] = content
        if len(content) != PEPPER_BYTES or not any(content):
            text = f"{path} must hold {PEPPER_BYTES} random bytes, and does not"
            secrets_read[name] = Finding("secrets", "problem", text, describe_remedy(name))
    return secrets_read


def _check_stored_settings(connection: sqlite3.Connection, file_config: FileConfig) -> Iterator[Finding]:
    stored_settings = {
        path: orjson.loads(value) for path, value in connection.execute("SELECT path, value FROM settings")
    }
    for path, reason in merge_stored_settings(file_config, stored_settings).ignored.items():
        fix = "Set it anew, or reset it: gateway settings --help"
        yield Finding("settings", "warning", f"The stored setting {path} is ignored: {reason}", fix)
