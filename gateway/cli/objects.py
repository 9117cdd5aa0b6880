"""Finds and changes objects of the admin API by the names that operators use."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import click

from gateway.cli.admin_client import ANSWER_TIMEOUT_S, AdminClient, run, run_with_channels
from gateway.cli.context import CliContext, CliError, Json
from gateway.cli.output import print_answer
from gateway.cli.text import clean, format_change

_QUOTA_PREFIX = "quota_"
"""Prefix of fields that the gateway sets together: a new quota gets a default period and status."""
_MAX_SHOWN_NAMES = 5


async def find_key_id(admin: AdminClient, name_or_id: str) -> str:
    """Return the id of the key with this id, name, or last four characters, in this order.

    A number that fits no key is returned as the id of a deleted key. Raises ``CliError``.
    """
    keys = (await admin.get("keys"))["data"]
    tests: tuple[Callable[[Json], bool], ...] = (
        lambda key: str(key["id"]) == name_or_id,
        lambda key: key["name"] == name_or_id,
        lambda key: key["key"][-4:] == name_or_id,
    )
    for test in tests:
        matches = [key for key in keys if test(key)]
        if len(matches) > 1:
            ids = _list_some([f"{key['id']} ({key['name']} of {key['account']})" for key in matches])
            raise CliError(f"Several keys are called '{name_or_id}'. Give one of these ids: {ids}")
        if matches:
            return str(matches[0]["id"])
    if name_or_id.isdigit():  # may be a deleted key, whose id is still in the request log
        return name_or_id
    raise CliError(f"No key has the id, the name or the last four characters '{name_or_id}'; see: gateway keys")


async def find_member(admin: AdminClient, name: str) -> Json:
    """Return the member with this name. Raises ``CliError``."""
    for member in (await admin.get("members"))["data"]:
        if member["name"] == name.lower():
            match: Json = member
            return match
    raise CliError(f"No member is called '{name}'; see: gateway members")


async def _find_member_id(admin: AdminClient, name: str) -> str:
    return str((await find_member(admin, name))["id"])


def _find_by_prefix(path: str, noun: str, *, query: Json) -> Callable[[AdminClient, str], Awaitable[str]]:
    """Return a function that completes an abbreviated id from the list at ``path``.

    The function raises ``CliError`` if several ids begin so.
    """

    async def find(admin: AdminClient, name_or_id: str) -> str:
        objects = (await admin.get(path, query=query))["data"]
        ids = [
            row["id"]
            for row in objects
            if row["id"].startswith(name_or_id) or row["id"].partition("_")[2].startswith(name_or_id)
        ]
        if name_or_id in ids or not ids:  # the list may lack older objects: the gateway checks the id
            return name_or_id
        if len(ids) > 1:
            raise CliError(f"Several {noun} have an id that begins with '{name_or_id}': {_list_some(ids)}")
        return str(ids[0])

    return find


def _list_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_SHOWN_NAMES]) + (", …" if len(names) > _MAX_SHOWN_NAMES else "")


_FINDERS: Mapping[str, Callable[[AdminClient, str], Awaitable[str]]] = {
    "keys": find_key_id,
    "members": _find_member_id,
    "running": _find_by_prefix("running", "requests", query={}),
    "batches": _find_by_prefix("batches", "batches", query={"limit": 1000}),
    "videos": _find_by_prefix("videos", "videos", query={"limit": 1000}),
}


async def find_id(admin: AdminClient, path: str, name_or_id: str) -> str:
    """Return the admin API's id of the object that the operator calls ``name_or_id``. Raises ``CliError``."""
    find = _FINDERS.get(path)
    return name_or_id if find is None else await find(admin, name_or_id)


async def resolve_key_id(admin: AdminClient, query: Json) -> Json:
    """Return ``query`` with the id of an API key in place of its name. Raises ``CliError``."""
    key = query["key"]
    return query if key is None else {**query, "key": await find_key_id(admin, key)}


def call_object(
    context: CliContext,
    method: str,
    path: str,
    name_or_id: str,
    *segments: str,
    body: Json | None = None,
    query: Mapping[str, Any] | None = None,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Json:
    """Find the id of the object ``name_or_id`` below ``path``, send one request about it, and return the answer.

    Raises ``CliError``.
    """

    async def work(admin: AdminClient) -> Json:
        object_id = await find_id(admin, path, name_or_id)
        return await admin.call(method, path, object_id, *segments, body=body, query=query, timeout_s=timeout_s)

    return run(context, work)


def edit_object(
    context: CliContext, path: str, name_or_id: str, body: Json, *, timeout_s: float = ANSWER_TIMEOUT_S
) -> None:
    """Change the object ``name_or_id`` below ``path``, and print the changes. Raises ``CliError``."""

    async def work(admin: AdminClient) -> tuple[Json, Json]:
        object_id = await find_id(admin, path, name_or_id)
        old_object = await admin.get(path, object_id)
        return old_object, await admin.call("PATCH", path, object_id, body=body, timeout_s=timeout_s)

    old_object, new_object = run(context, work)
    print_answer(context, new_object, lambda _: print_edit(old_object["name"], old_object, new_object, body))


def print_edit(name: str, old_object: Json, new_object: Json, requested_fields: Mapping[str, Any]) -> None:
    """Print which ``requested_fields`` have changed: ``key-3: rpm 60 → none``. Secrets always count as changed."""
    fields = [
        *requested_fields,
        *(field for field in new_object if field.startswith(_QUOTA_PREFIX) and field not in requested_fields),
    ]
    changes = [
        format_change(field, old_object[field], new_object[field])
        if field in old_object
        else f"{field.replace('_', ' ')} changed"
        for field in fields
        if field not in old_object or old_object[field] != new_object[field]
    ]
    click.echo(clean(f"{name}: {', '.join(changes) or 'nothing changed'}"))


def get_with_models(context: CliContext, *path: str, query: Mapping[str, Any] | None = None) -> Json:
    """Return the data at ``path`` after the channels had time to fetch their models. Raises ``CliError``."""

    async def work(admin: AdminClient) -> Json:
        await admin.await_models()
        return await admin.get(*path, query=query)

    return run_with_channels(context, work)
