"""All connections to PostgreSQL end, as in a restart or a failover: what can safely be repeated fails for no caller."""

import asyncio
import importlib
import inspect
import pkgutil
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

import gateway.storage
from gateway.cluster.credit.authority import PostgresCreditAuthority
from gateway.domain.balance import parse_day
from gateway.errors import GatewayError, StoreUnavailable
from gateway.events import Events
from gateway.storage.database import Database
from gateway.storage.encryption import SecretBox
from gateway.storage.open import open_database
from gateway.storage.postgres.address import Address
from tests.support.gateway_process import eventually
from tests.support.postgres import SharedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ARGUMENTS: dict[str, Any] = {
    **dict.fromkeys(("account_id", "key_id", "member_id", "channel_id", "now_ms", "before_ms", "since_ms"), 1),
    **dict.fromkeys(("since_s", "before_hour", "after_sequence", "first_sequence", "last_sequence", "seen_ms"), 1),
    **dict.fromkeys(("limit", "count", "max_rows", "max_bytes", "claim_ms", "until_ms", "max_per_account"), 1),
    **dict.fromkeys(("request_id", "response_id", "batch_id", "video_id", "file_id", "upload_id", "session"), "none"),
    **dict.fromkeys(("name", "prefix", "issuer", "process", "new_name"), "none"),
    **dict.fromkeys(("digest", "credential_id"), b"none"),
    **dict.fromkeys(("ids", "request_ids", "names", "models"), ("none",)),
    **dict.fromkeys(("account_ids", "key_ids"), (1,)),
    "day": parse_day(0),
    "database": None,
    "secret_box": SecretBox(bytes(32)),
    "find_process": lambda: "node:1",
}
"""Arguments of repositories and of their methods, by name. A method that needs others is not called."""
_END = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND "
_OTHERS = "pid <> pg_backend_pid()"
_WAITING = "wait_event_type = 'Lock'"
_COUNT_WAITING = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {_WAITING}"  # noqa: S608
_LOCK_WRITES = "SELECT pg_advisory_xact_lock(7130001)"
_READ = text("SELECT count(*) FROM accounts")

Call = Callable[[], Awaitable[object]]


def find_arguments(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the arguments that ``function`` needs; None if ``ARGUMENTS`` lacks one."""
    parameters = inspect.signature(function).parameters.values()
    needed = [each.name for each in parameters if each.default is each.empty]
    return {name: ARGUMENTS[name] for name in needed} if set(needed) <= ARGUMENTS.keys() else None


def list_calls(database: Database) -> Iterator[tuple[str, Call]]:
    """The methods of all repositories that need no arguments but those of ``ARGUMENTS``."""
    for module in pkgutil.iter_modules(gateway.storage.__path__, "gateway.storage."):
        for name, repository_type in vars(importlib.import_module(module.name)).items():
            if not name.endswith("Repository") or repository_type.__module__ != module.name:
                continue
            made = find_arguments(repository_type)
            assert made is not None, f"ARGUMENTS lacks what {name} needs"
            repository = repository_type(**{**made, "database": database})
            for method_name, method in inspect.getmembers(repository, inspect.iscoroutinefunction):
                arguments = find_arguments(method)
                if not method_name.startswith("_") and arguments is not None:
                    yield f"{name}.{method_name}", partial(method, **arguments)


async def execute_nothing(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT 1"))


def list_operations(database: Database) -> dict[str, Call]:
    return {
        "read": lambda: database.read(_READ),
        "read_long": lambda: database.read_long(_READ),
        "read_first": lambda: database.read_first(_READ),
        "read_snapshot": lambda: database.read_snapshot([_READ, _READ]),
        "write": lambda: database.write(execute_nothing),
        "write_shared": lambda: database.write_shared(execute_nothing),
        "change": lambda: database.change(text("UPDATE accounts SET name = name")),
        "check_writable": database.check_writable,
    }


async def try_call(call: Call) -> str:
    """Return the error of ``call`` if the database was not there; empty if it was."""
    try:
        await call()
    except StoreUnavailable as error:
        return repr(error.__cause__ or error)
    except GatewayError:  # nothing has this id
        return ""
    return ""


async def test_no_method_of_a_repository_fails_on_connections_that_a_restart_has_closed(
    shared_postgres: SharedPostgres,
) -> None:
    """This loop stands still while they end: nothing has read the end of a connection before the method begins."""
    url = await shared_postgres.empty()
    database = await open_database(url)
    credit = PostgresCreditAuthority(Address(url), "node", lambda: 1, Events())
    calls = [*list_operations(database).items(), *list_calls(database), ("credit leases", credit.find_leases)]
    assert len(calls) > 60
    runner, failed = asyncio.Runner(), {}
    with ThreadPoolExecutor(1) as thread:
        breaker = thread.submit(runner.run, asyncpg.connect(url)).result()
        for name, call in calls:
            await try_call(call)  # what it needs is open
            thread.submit(runner.run, breaker.execute(_END + _OTHERS)).result()
            if error := await try_call(call):
                failed[name] = error
        thread.submit(runner.run, breaker.close()).result()
        thread.submit(runner.close).result()
    assert failed == {}
    await credit.close()
    await database.close()


async def test_an_operation_that_waits_when_its_connection_ends_is_begun_again(shared_postgres: SharedPostgres) -> None:
    """Its first statement waits for a lock when all connections end: it has changed nothing."""
    url = await shared_postgres.empty()
    database = await open_database(url)
    blocker, breaker = await asyncpg.connect(url), await asyncpg.connect(url)

    async def is_waiting() -> bool:
        return bool(await breaker.fetchval(_COUNT_WAITING))

    for name, call in list_operations(database).items():
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE accounts" if name.startswith("read") else _LOCK_WRITES)
            task = asyncio.create_task(try_call(call))
            await eventually(is_waiting, 30)
            await breaker.execute(_END + _WAITING)
        assert await task == "", name
    await blocker.close()
    await breaker.close()
    await database.close()
