"""Exports of kept bodies, and the signed statement of what was kept and deleted."""

import base64
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gateway.server.admin.prefix import PREFIX
from gateway.server.context import SERVICES
from gateway.services import sinks
from gateway.sinks.batch import DeliveryFailed
from gateway.sinks.service import SinkService
from gateway.sinks.source import SinkSource
from gateway.storage.bodies.body_store import BodyStore
from tests.support.admin_calls import AdminApi
from tests.support.console_people import invite, make_administrator
from tests.support.gateway import KEY, RunningGateway, channel
from tests.support.kept_requests import ask, find_store, say
from tests.support.started_gateways import StartGateway
from tests.support.text_provider import open_text_provider

GUEST = "sk-test-key-of-a-guest"


def config(base_url: str) -> dict[str, Any]:
    return {
        "channel": [channel(base_url)],
        "account": [{"name": "acme"}, {"name": "guests"}],
        "key": [
            {"name": "test", "account": "acme", "secret": KEY},
            {"name": "guest", "account": "guests", "secret": GUEST},
        ],
        "requests": {"keep_bodies": "all"},
    }


async def export(gateway: RunningGateway, query: str = "") -> list[Any]:
    headers = {"Authorization": f"Bearer {gateway.admin_token}"}
    url = f"{gateway.url}{PREFIX}/bodies/export?{query}"
    async with gateway.client.get(url, headers=headers) as response:
        text = await response.text()
        assert response.status == 200, text
        return [orjson.loads(line) for line in text.splitlines()]


async def test_kept_bodies_are_exported_raw_and_for_training(gateway_with: StartGateway) -> None:
    async with open_text_provider([]) as base_url:
        gateway = await gateway_with(config(base_url))
        first = await ask(gateway, say("one"))
        await ask(gateway, say("not kept"), x_gateway_keep="no")
        streamed = await ask(gateway, {**say("two"), "stream": True})
        other = await ask(gateway, say("three"), authorization=f"Bearer {GUEST}")
        lines = await export(gateway)
        assert [line["id"] for line in lines] == [other, streamed, first]
        asked, answered = lines[-1]["bodies"]
        assert orjson.loads(asked["content"]) == say("one")
        assert (answered["kind"], answered["redacted"], lines[-1]["account"]) == ("answer", False, "acme")
        examples = await export(gateway, "format=openai&account=acme")
        assert [[message["content"].strip() for message in example["messages"]] for example in examples] == [
            ["two", "m says hello"], ["one", "m says hello"],
        ]  # fmt: skip
        office = AdminApi(gateway)
        rows = (await office("GET", "/audit-trail?action=bodies.exported"))["data"]
        assert [row["detail"] for row in rows] == [{"account": "acme", "format": "openai"}, {}]


def share_bodies(base_url: str, shared: Path) -> dict[str, Any]:
    """A gateway that moves bodies to the folder ``shared``, and delivers them."""
    shared.mkdir()
    sink = {"name": "s", "kind": "webhook", "url": "http://127.0.0.1:9/", "secret": "s" * 32, "fields": "full"}
    return {**config(base_url), "store": {"bodies_url": str(shared)}, "sink": [sink]}


async def move_bodies(gateway: RunningGateway) -> BodyStore:
    bodies = find_store(gateway)
    assert bodies is not None
    assert bodies.shared is not None
    bodies.shared.move_after_s = 0
    await bodies.write_waiting()
    await bodies.move_finished()
    await gateway.rows(1)
    return bodies


def find_source(gateway: RunningGateway) -> SinkSource:
    service: SinkService | None = gateway.app[SERVICES].sinks
    assert service is not None
    return service.sinks[0].worker.source


async def test_nothing_ends_as_if_whole_while_the_shared_store_does_not_answer(
    gateway_with: StartGateway, tmp_path: Path
) -> None:
    async with open_text_provider([]) as base_url:
        shared = tmp_path / "shared"
        gateway = await gateway_with(share_bodies(base_url, shared))
        request_id = await ask(gateway, say("one"))
        await move_bodies(gateway)
        source, office = find_source(gateway), AdminApi(gateway)
        assert source.bodies is not None
        kept = await source.bodies.read(request_id)
        assert len(kept) == 2
        shared.rename(tmp_path / "away")
        with pytest.raises(DeliveryFailed, match="does not answer"):
            await source.bodies.read(request_id)
        with pytest.raises(aiohttp.ClientPayloadError):
            await export(gateway)
        assert (
            "cannot be read now"
            in (await office("GET", f"/requests/{request_id}/body", status=503))["error"]["message"]
        )
        (tmp_path / "away").rename(shared)
        assert await source.bodies.read(request_id) == kept
        assert [line["id"] for line in await export(gateway)] == [request_id]


async def test_a_segment_that_cannot_be_read_holds_a_sink_up_no_longer_than_an_absent_node(
    gateway_with: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_text_provider([]) as base_url:
        shared = tmp_path / "shared"
        gateway = await gateway_with(share_bodies(base_url, shared))
        request_id = await ask(gateway, say("one"))
        await move_bodies(gateway)
        source = find_source(gateway)
        assert source.bodies is not None
        for path in list((shared / "bodies" / "segments").iterdir()):  # two moves at once make two copies
            path.unlink(missing_ok=True)
            path.mkdir()  # as root reads every file
        with pytest.raises(DeliveryFailed, match=r"the segment \w+\.segment cannot be read"):
            await source.bodies.read(request_id)
        monkeypatch.setattr(sinks, "MAX_MOVE_WAIT_S", -1.0)  # as if ten minutes were over
        assert await source.bodies.read(request_id) == ()
        shared.rename(tmp_path / "away")
        with pytest.raises(DeliveryFailed, match="does not answer"):
            await source.bodies.read(request_id)


async def test_a_user_is_forgotten_although_the_shared_store_does_not_answer(
    gateway_with: StartGateway, tmp_path: Path
) -> None:
    async with open_text_provider([]) as base_url:
        shared = tmp_path / "shared"
        gateway = await gateway_with(share_bodies(base_url, shared))
        request_id, office = await ask(gateway, {**say("one"), "user": "ann"}), AdminApi(gateway)
        bodies = await move_bodies(gateway)
        shared.rename(tmp_path / "away")
        await office("POST", "/users/forget", {"user": "ann"}, status=503)
        await office("GET", f"/requests/{request_id}/body", status=404)
        assert (await office("GET", "/requests?end_user=ann"))["data"] == []
        assert [
            row["detail"]["requests"] for row in (await office("GET", "/audit-trail?action=user.forgotten"))["data"]
        ]
        (tmp_path / "away").rename(shared)
        assert list((shared / "bodies" / "segments").iterdir())
        await bodies.sweep()
        assert list((shared / "bodies" / "segments").iterdir()) == []


async def test_a_member_exports_its_own_account_alone(gateway_with: StartGateway) -> None:
    async with open_text_provider([]) as base_url:
        gateway = await gateway_with(config(base_url))
        office, ada = AdminApi(gateway), await make_administrator(gateway)
        ben = await invite(ada, "ben", "viewer", "acme")
        async with ada.session, ben.session:
            mine = await ask(gateway, say("one"))
            await ask(gateway, say("three"), authorization=f"Bearer {GUEST}")
            assert (await ben.call("GET", "/bodies/export"))[0] == 403
            member = next(one for one in (await office("GET", "/members"))["data"] if one["name"] == "ben")
            await office("PATCH", f"/members/{member['id']}", {"may_read_bodies": True})
            status, exported = await ben.call("GET", "/bodies/export")
            assert (status, [orjson.loads(line)["id"] for line in exported.splitlines()]) == (200, [mine])
            assert (await ben.call("GET", "/bodies/export?account=guests"))[0] in {403, 404}
            assert (await ben.call("GET", "/bodies/attestation"))[0] == 403


async def test_a_statement_of_deletions_is_signed(gateway_with: StartGateway) -> None:
    async with open_text_provider([]) as base_url:
        gateway = await gateway_with(config(base_url))
        office = AdminApi(gateway)
        await ask(gateway, say("one"))
        await ask(gateway, {**say("two"), "user": "ann"}, authorization=f"Bearer {GUEST}")
        await office("POST", "/bodies/delete", {"account": "acme"})
        await office("POST", "/bodies/delete", {"user": "ann"})
        answer = await office("GET", "/bodies/attestation")
        key = load_pem_public_key(answer["public_key"].encode())
        assert isinstance(key, Ed25519PublicKey)
        key.verify(base64.b64decode(answer["signature"]), answer["statement"].encode())  # raises if it is another
        statement = orjson.loads(answer["statement"])
        assert (statement["kept_now"]["requests"], statement["rule"]) == (0, "all")
        details = [deletion["detail"] for deletion in statement["deletions"]]
        assert {"account": "acme", "requests": 1} in details
        assert "ann" not in answer["statement"]
        assert (statement["hidden_and_not_erased_yet"], statement["rules_of_keys"]) == (0, {})
        of_account = orjson.loads((await office("GET", "/bodies/attestation?account=acme"))["statement"])
        assert [deletion["detail"]["account"] for deletion in of_account["deletions"]] == ["acme"]
        of_guests = orjson.loads((await office("GET", "/bodies/attestation?account=guests"))["statement"])
        assert [deletion["detail"] for deletion in of_guests["deletions"]] == [{"requests": 1}]
        again = await office("GET", "/bodies/attestation")
        assert again["public_key"] == answer["public_key"]
