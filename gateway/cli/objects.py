"""Finds and changes objects of the admin API by the names that operators use."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import click

from gateway.cli.admin_client import ANSWER_TIMEOUT_S, AdminClient, CliContext, CliError, Json, run, run_with_channels
from gateway.cli.output import print_answer
from gateway.cli.text import clean, format_change

_QUOTA = "quota_"
"""Prefix of fields that the gateway sets together: a new quota gets a default period and status."""
_SHOWN = 5


async def find_key_id(admin: AdminClient, given: str) -> str:
    """Return the id of the key with this id, name, or last four characters, in this order. Raises ``CliError``."""
    keys = (await admin.get("keys"))["data"]
    tests: tuple[Callable[[Json], bool], ...] = (
        lambda key: str(key["id"]) == given,
        lambda key: key["name"] == given,
        lambda key: key["key"][-4:] == given,
    )
    for test in tests:
        found = [key for key in keys if test(key)]
        if len(found) > 1:
            ids = _list_some([f"{key['id']} ({key['name']} of {key['account']})" for key in found])
            raise CliError(f"Several keys are called '{given}'. Give one of these ids: {ids}")
        if found:
            return str(found[0]["id"])
    if given.isdigit():  # may be a deleted key, whose id is still in the request log
        return given
    raise CliError(f"No key has the id, the name or the last four characters '{given}'; see: gateway keys")


async def find_member(admin: AdminClient, name: str) -> Json:
    """Return the member with this name. Raises ``CliError``."""
    for member in (await admin.get("members"))["data"]:
        if member["name"] == name.lower():
            found: Json = member
            return found
    raise CliError(f"No member is called '{name}'; see: gateway members")


async def _find_member_id(admin: AdminClient, name: str) -> str:
    return str((await find_member(admin, name))["id"])


def _find_by_prefix(path: str, noun: str, *, query: Json) -> Callable[[AdminClient, str], Awaitable[str]]:
    """Return a function that completes an abbreviated id from the list at ``path``."""

    async def find(admin: AdminClient, given: str) -> str:
        listed = (await admin.get(path, query=query))["data"]
        ids = [
            row["id"] for row in listed if row["id"].startswith(given) or row["id"].partition("_")[2].startswith(given)
        ]
        if given in ids or not ids:  # the list may lack older objects: the gateway checks the id
            return given
        if len(ids) > 1:
            raise CliError(f"Several {noun} have an id that begins with '{given}': {_list_some(ids)}")
        return str(ids[0])

    return find


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


_FINDERS: Mapping[str, Callable[[AdminClient, str], Awaitable[str]]] = {
    "keys": find_key_id,
    "members": _find_member_id,
    "running": _find_by_prefix("running", "requests", query={}),
    "batches": _find_by_prefix("batches", "batches", query={"limit": 1000}),
    "videos": _find_by_prefix("videos", "videos", query={"limit": 1000}),
}


async def find_id(admin: AdminClient, path: str, given: str) -> str:
    """Return the admin API's id of the object that the operator calls ``given``. Raises ``CliError``."""
    find = _FINDERS.get(path)
    return given if find is None else await find(admin, given)


async def resolve_key_id(admin: AdminClient, query: Json) -> Json:
    """Return ``query`` with its key replaced by the key's id. Raises ``CliError``."""
    key = query["key"]
    return query if key is None else {**query, "key": await find_key_id(admin, key)}


def call_object(
    context: CliContext,
    method: str,
    path: str,
    given: str,
    *more: str,
    body: Json | None = None,
    query: Mapping[str, Any] | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Json:
    """Send one request about the object ``given`` below ``path``, and return the answer. Raises ``CliError``."""

    async def work(admin: AdminClient) -> Json:
        found = await find_id(admin, path, given)
        return await admin.call(method, path, found, *more, body=body, query=query, timeout_s=timeout_s)

    return run(context, work)


def edit_object(context: CliContext, path: str, given: str, body: Json, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
    """Change the object ``given`` below ``path``, and print the changes. Raises ``CliError``."""

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        found = await find_id(admin, path, given)
        before = await admin.get(path, found)
        return before, await admin.call("PATCH", path, found, body=body, timeout_s=timeout_s)

    before, after = run(context, work)
    print_answer(context, after, lambda _: print_edit(before["name"], before, after, body))


def print_edit(name: str, before: Json, after: Json, requested: Mapping[str, Any]) -> None:
    """Print the changed ones of the ``requested`` fields: ``key-3: rpm 60 → none``. Secrets always count as changed."""
    fields = [*requested, *(field for field in after if field.startswith(_QUOTA) and field not in requested)]
    changes = [
        format_change(field, before[field], after[field]) if field in before else f"{field.replace('_', ' ')} changed"
        for field in fields
        if field not in before or before[field] != after[field]
    ]
    click.echo(clean(f"{name}: {', '.join(changes) or 'nothing changed'}"))


def get_with_models(context: CliContext, *path: str, query: Mapping[str, Any] | None = None) -> Json:
    """Return the data at ``path`` after the channels had time to fetch their models. Raises ``CliError``."""

    async def work(admin: AdminClient) -> Json:
        await admin.await_models()
        return await admin.get(*path, query=query)

    return run_with_channels(context, work)
