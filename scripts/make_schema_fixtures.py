"""Writes ``tests/storage/fixtures/NNNN.sql`` for each migration that has none: a database that lived up to then.

    .venv/bin/python scripts/make_schema_fixtures.py

Run it with every new migration, before its release. The database begins with the oldest schema; after each migration
rows are added to the new tables and a request is made, so that every table has rows and old rows have been migrated. A
fixture that exists is never written again: it shows what a released version stored.
"""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import JSON, Connection, LargeBinary, MetaData, String, Table, create_engine, insert, text

sys.path.insert(0, str(Path(__file__).parent.parent))

import gateway.storage.migrations
from gateway.storage import channels
from gateway.storage.data_folder import SECRETS
from gateway.storage.encryption import SecretBox
from gateway.storage.identity import MASTER_KEY_NAME, fingerprint
from tests.support.schema_fixtures import FIXTURES, find_secret

Row = dict[str, Any]

AT_MS = 1_772_323_200_000
"""The first of March 2026, 00:00 UTC."""
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
LARGE = 2**53 + 1
"""Nano-USD that a floating-point number cannot represent."""
SESSION = bytes([1] * 32)
"""The digest of the session, whose table came with the first migration."""
VIDEO = "video_0123456789abcdef0123456789abcdef"
DERIVED = {"alembic_version", "requests", "usage_days", "usage_hours", "subject_usage", "subject_counts"}
"""Tables that a request fills, not ``list_rows``."""


def list_rows() -> dict[str, list[Row]]:
    """The first rows of each table, as far as their values matter; the others are made from the column's type."""
    sealed = SecretBox(find_secret(MASTER_KEY_NAME)).derive(channels.PURPOSE)
    settings = {"models": ["m"], "model_map": [], "groups": [], "priority": 0, "weight": 1, "timeouts": {}}
    secret = orjson.dumps({"api_keys": ["sk-provider"]})
    limits = {"status": "active", "quota_nanos": LARGE * 4, "quota_period": "lifetime", "quota_status": 403}
    return {
        "accounts": [{"name": name, "groups": [], "declared": False, **limits} for name in ("acme", "beta")],
        "keys": [
            {
                "account_id": number,
                "name": f"key {number}",
                "digest": bytes([number] * 32),
                "former_digest": None,
                "last4": f"000{number}",
                "models": [],
                "group": None,
                "allow_ips": [],
                "declared": False,
                "locked": [],
                "end_user": "",
                "tags": "",
                **limits,
            }
            for number in (1, 2)
        ],
        "entries": [{"kind": "top_up", "account_id": 2, "key_id": None, "amount_nanos": LARGE, "request_id": None}],
        "channels": [
            {
                "name": f"up{number}",
                "status": "active",
                "provider": "custom",
                "base_url": "http://127.0.0.1:9/v1",
                "settings": settings,
                "sealed": sealed.seal(secret, context=channels.build_associated_data(number)),
            }
            for number in (1, 2)
        ],
        "videos": [{"id": VIDEO, "state": "completed", "owner": "", "due_ms": None, "held_nanos": 0}],
        "video_prompts": [{"video_id": VIDEO}],
        "deliveries": [{"video_id": VIDEO, "status": "delivered", "due_ms": None, "owner": ""}],
        "replays": [{"state": "done"}],
        "retired": [{"account_id": 1, "key_id": 1, "requests": 1, "cost_nanos": 7, "until_ms": AT_MS}],
        "members": [{"account_id": 1, "role": "owner", "status": "active", "totp": None, "recovery": []}],
        "sessions": [{"member_id": 1}],
        "links": [{"account_id": 1, "member_id": None}],
        "identities": [{"issuer": "https://id.example.com", "subject": "ann", "member_id": 1}],
        "files": [{"account_id": 1, "purpose": "batch"}],
        "uploads": [{"id": "upload_1", "account_id": 1, "status": "pending"}],
        "upload_parts": [{"upload_id": "upload_1"}],
        "batches": [{"id": "batch_1", "account_id": 1, "status": "completed"}],
        "passkeys": [{"member_id": 1, "transports": ["internal"]}],
        "provider_sessions": [{"digest": SESSION}],
        "kept_responses": [{"account_id": 1}],
        "settings": [{"path": "routing.retry_ratio", "value": 0.25}],
        "limit_counters": [{"counter": "session budget|session|lifetime|UTC", "subject": "1:run", "spent_nanos": 0}],
        "limit_fills": [{"counter": "each user|user|month|UTC", "keys": "[]", "until_s": None, "state": "done"}],
        "orphan_charges": [{"node": "me", "counter": "each user|user|month|UTC", "subject": "1:ann", "spent_nanos": 0}],
        "session_states": [{"subject": "1:run", "account_id": 1, "ended_ms": None}],
        "body_key_versions": [{"is_pending": False}],
        "alerts": [{"kind": "channel_failing", "subject": "up1", "open": True}],
        "fingerprints": [{"name": name, "fingerprint": fingerprint(name, find_secret(name))} for name in SECRETS],
    }


def open_config(connection: Connection) -> Config:
    """Alembic's configuration for a connection."""
    config = Config()
    config.set_main_option("script_location", next(iter(gateway.storage.migrations.__path__)))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def complete(table: Table, row: Row, number: int) -> Row:
    """A row with a value in every column."""
    made: Row = {}
    for column in table.columns:
        if column.name == "sequence" or (column.name == "id" and not isinstance(column.type, String)):
            continue
        if isinstance(column.type, JSON):
            made[column.name] = {}
        elif isinstance(column.type, LargeBinary):
            made[column.name] = bytes([number] * 32)
        elif isinstance(column.type, String):
            made[column.name] = f"{column.name} {number}"
        elif column.name.endswith("_ms"):
            made[column.name] = AT_MS + number
        else:
            made[column.name] = number
    return {**made, **{name: value for name, value in row.items() if name in table.c}}


def add_request(tables: MetaData, connection: Connection, number: int, **given: Any) -> None:
    """A settled request and, as far as the schema has them, its charge and its sums."""
    account_id = number % 2 + 1
    at_ms = AT_MS + number * DAY_MS // 2
    row = {
        "id": f"req_{number:024x}",
        "started_ms": at_ms - 500,
        "settled_ms": at_ms,
        "total_ms": 500,
        "account": ("acme", "beta")[account_id - 1],
        "account_id": account_id,
        "key_id": account_id,
        "key_name": f"key {account_id}",
        "operation": "chat",
        "model": "m",
        "channel": "up1",
        "status": 200,
        "ending": "completed",
        "outcome": "completed",
        "error_code": None,
        "stream": True,
        "attempts": 1,
        "usage_source": "upstream",
        "cost_nanos": LARGE + number,
        "unpriced": False,
        "shadow": False,
        "limit_charges": "",
        **given,
    }
    row = complete(tables.tables["requests"], row, number)
    connection.execute(insert(tables.tables["requests"]).values(row))
    add_sums(tables, connection, {**row, "settled_ms": at_ms, "account_id": account_id})


def add_sums(tables: MetaData, connection: Connection, row: Row) -> None:
    """The charge of a request and its part of the sums."""
    cost = row["cost_nanos"]
    if cost:
        charge = {"at_ms": row["settled_ms"], "kind": "charge", "amount_nanos": cost, "request_id": row["id"]}
        whose = {name: row[name] for name in ("account_id", "key_id")}
        connection.execute(insert(tables.tables["entries"]).values(**charge, **whose))
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos")
    columns = ("account_id", "key_id", "model", *names)
    sums = {name: row[name] for name in columns}
    add_up(tables.tables["usage_days"], connection, {"day": row["settled_ms"] // DAY_MS, "requests": 1, **sums})
    failed = row["error_code"] is not None
    hour = row["settled_ms"] // HOUR_MS
    more = {"requests": 1, "failed": int(failed), "channel": row["channel"], "status": row["status"]}
    for span, begin in ((1, hour), (24, hour // 24 * 24)):
        line = {"span": span, "hour": begin, "total_ms": row["total_ms"], **more, **sums}
        add_up(tables.tables["usage_hours"], connection, line)
    if "subject_usage" in tables.tables and "end_user" in row:
        add_subjects(tables, connection, row)


def add_subjects(tables: MetaData, connection: Connection, row: Row) -> None:
    """The part of a request in the sums of its user, its session and its tag."""
    names = ("account_id", "key_id", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_nanos", "total_ms")
    sums = {name: row[name] for name in (*names, "saved_nanos")}
    sums |= {"day": row["settled_ms"] // DAY_MS, "requests": 1, "failed": int(row["error_code"] is not None)}
    subjects = [("session", "", row["session"]), ("tag", row["tags"], ""), ("user", "", row["end_user"])]
    for kind, name, value in subjects:
        add_up(tables.tables["subject_usage"], connection, {"kind": kind, "name": name, "value": value, **sums})
        count = {"kind": kind, "name": name, "day": sums["day"], "distinct_values": 1, "max_values": 0}
        add_up(tables.tables["subject_counts"], connection, count)


def add_up(table: Table, connection: Connection, row: Row) -> None:
    """Add a row to a table of sums, or its numbers to the row that has its place."""
    place = [column.name for column in table.primary_key]
    added = ", ".join(f"{name} = {name} + excluded.{name}" for name in row if name not in place)
    words = f"ON CONFLICT ({', '.join(place)}) DO UPDATE SET {added}"
    columns, values = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(text(f"INSERT INTO {table.name} ({columns}) VALUES ({values}) {words}"), row)  # noqa: S608


def fill(connection: Connection, number: int) -> None:
    """Add rows to every table without one, and two requests."""
    tables = MetaData()
    tables.reflect(connection)
    rows = list_rows()
    for table in tables.sorted_tables:
        if table.name not in DERIVED and (table.name == "entries" or not connection.execute(table.select()).first()):
            for index, row in enumerate(rows.get(table.name, [{}])):
                connection.execute(insert(table).values(complete(table, row, number + index)))
                if table.name == "videos":
                    add_request(tables, connection, 1000, id=f"request_id {number}", cost_nanos=number)
                if table.name == "retired":
                    past = {"account_id": 1, "key_id": 1, "id": "retired", "settled_ms": AT_MS, "cost_nanos": 7}
                    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
                    words = {"model": "m", "channel": "up1", "status": 200, "error_code": None, "total_ms": 1}
                    add_sums(tables, connection, {**past, **words, **dict.fromkeys(names, 1)})
    add_request(tables, connection, 2 * number)
    wrong = {"ending": "upstream_failed", "outcome": "failed", "error_code": "upstream_failed", "status": 502}
    add_request(tables, connection, 2 * number + 1, cost_nanos=0, **wrong)


def main() -> None:
    """Make the database step by step, and dump it after each."""
    FIXTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        engine = create_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            scripts = ScriptDirectory.from_config(open_config(connection))
            revisions = sorted(script.revision for script in scripts.walk_revisions())
        for number, revision in enumerate(revisions, 1):
            with engine.begin() as connection:
                command.upgrade(open_config(connection), revision)
                fill(connection, number)
            target = FIXTURES / f"{revision}.sql"
            if not target.exists():
                with closing(sqlite3.connect(path)) as database:
                    target.write_text("\n".join(database.iterdump()) + "\n")
                print(f"{target}: {target.stat().st_size:,} bytes")
        engine.dispose()


if __name__ == "__main__":
    main()
