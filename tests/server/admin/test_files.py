"""Clients' files over the admin API, and by the command line: listed, found, deleted; a member's are of its account."""

from typing import Any

import aiohttp
import attrs
import pytest

from gateway.domain.audit_log import AuditFilter, AuditRow
from gateway.errors import NotFound
from gateway.server.context import SERVICES
from tests.support.cli_operator import Operator, log, sit_down
from tests.support.console_people import invite, make_administrator
from tests.support.gateway import KEY, RunningGateway
from tests.support.started_gateways import StartGateway

__all__ = ["log"]
"""A fixture of every test here, too."""
OTHER_KEY = "sk-" + "o" * 44 + "ther"
CONFIG: dict[str, Any] = {
    "account": [{"name": "acme"}, {"name": "north"}],
    "key": [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "sensor", "account": "north", "secret": OTHER_KEY},
    ],
}


async def send_file(gateway: RunningGateway, name: str, purpose: str, key: str = KEY, **fields: str) -> str:
    form = aiohttp.FormData({"purpose": purpose, **fields})
    form.add_field("file", b"a" * 2_048, filename=name)
    headers = {"Authorization": f"Bearer {key}"}
    async with gateway.client.post(f"{gateway.url}/v1/files", data=form, headers=headers) as response:
        return str((await response.json())["id"])


async def test_files_are_listed_and_deleted_and_a_member_reaches_only_those_of_its_account(
    gateway_with: StartGateway,
) -> None:
    gateway = await gateway_with(CONFIG)
    ada = await make_administrator(gateway)
    mia, vic = await invite(ada, "mia", "member", "north"), await invite(ada, "vic", "viewer", "north")
    expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    report = await send_file(gateway, "Report_1%.txt", "user_data", **expiry)
    lines = await send_file(gateway, "lines.jsonl", "batch")
    theirs = await send_file(gateway, "theirs.jsonl", "batch", OTHER_KEY)

    async def list_ids(person: Any, query: str = "") -> list[str]:
        status, answer = await person.call("GET", f"/files{query}")
        assert status == 200, answer
        return [file["id"] for file in answer["data"]]

    assert await list_ids(ada) == [theirs, lines, report]
    for query, found in {
        "?account=acme": [lines, report],
        "?purpose=batch": [theirs, lines],
        "?search=REPORT": [report],
        "?search=%25": [report],
        "?search=_1": [report],
        f"?search={lines[-9:]}": [lines],
        f"?after={theirs}&limit=1": [lines],
    }.items():
        assert await list_ids(ada, query) == found, query
    assert await list_ids(mia) == await list_ids(vic) == [theirs]
    assert await list_ids(mia, f"?after={lines}") == [], "another account's file is no place in this list"
    (file,) = (await ada.call("GET", "/files?search=report"))[1]["data"]
    assert (file["account"], file["key_name"], file["bytes"]) == ("acme", "test", 2_048)
    assert file["expires_at"] > file["created_at"]
    assert [(await mia.call("DELETE", f"/files/{one}"))[0] for one in (report, "nothing")] == [404, 404]
    assert (await vic.call("DELETE", f"/files/{theirs}"))[0] == 403
    assert (await mia.call("GET", "/files?account=acme"))[0] in {403, 404}
    assert await mia.call("DELETE", f"/files/{theirs}") == (200, {"name": theirs, "deleted": True})
    assert (await ada.call("DELETE", f"/files/{report}"))[0] == 200
    assert await list_ids(ada) == [lines]
    async with gateway.client.get(f"{gateway.url}/v1/files/{report}/content") as response:
        assert response.status == 404
    _, trail = await ada.call("GET", "/audit-trail?action=file")
    assert [(row["actor"], row["subject"], row["account"]) for row in trail["data"]] == [
        ("ada", report, "acme"),
        ("mia", theirs, "north"),
    ]
    _, page = await ada.open("/files")
    assert "lines.jsonl" in page
    for person in (ada, mia, vic):
        await person.session.close()


async def test_a_file_is_deleted_with_its_audit_row_and_only_once(gateway_with: StartGateway) -> None:
    gateway = await gateway_with(CONFIG)
    services = gateway.app[SERVICES]
    files, audit = services.files.files, AuditRow(0, 1_000, "token", "op", None, "", "file.deleted", 1, "")
    file = await files.get(await send_file(gateway, "lines.jsonl", "batch"), None)
    assert [await files.remove(file, attrs.evolve(audit, subject=file.id)) for _ in range(2)] == [True, False]
    with pytest.raises(NotFound):
        await files.open(file)
    rows = await services.admin.audit_log.list_audit(AuditFilter(action="file"), 9)
    assert [(row.action, row.subject) for row in rows] == [("file.deleted", file.id)]


async def test_an_operator_lists_and_deletes_files_by_commands(gateway_with: StartGateway) -> None:
    operator: Operator = await sit_down(gateway_with)
    none = await operator.type("files")
    assert (none.exit_code, none.stderr) == (0, "No files stored.\n")
    lines = await send_file(operator.gateway, "lines.jsonl", "batch")
    table = (await operator.see("files", width=160)).splitlines()
    assert [lines, "acme", "lines.jsonl", "batch"] == table[1].split()[-8:-4]
    assert (await operator.ask("files", "--purpose", "vision"))["data"] == []
    deleted = await operator.see("files", "delete", lines, "--yes")
    assert deleted == f"The file {lines} is deleted.\n"
    assert (await operator.ask("files"))["data"] == []
    assert not await operator.gateway.app[SERVICES].files.files.store.list_used_ids()
