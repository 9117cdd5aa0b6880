"""Members who may read kept bodies: which they see, which they do not, and what is recorded of it."""

from typing import Any

from tests.support.admin_calls import AdminApi
from tests.support.console_people import invite, make_administrator
from tests.support.kept_requests import ask, config, say
from tests.support.scripted_upstream import COMPLETION, ScriptedUpstream, answer, chat_script
from tests.support.started_gateways import StartGateway


async def find_member_id(office: AdminApi, name: str) -> int:
    members = (await office("GET", "/members"))["data"]
    return int(next(member["id"] for member in members if member["name"] == name))


async def test_a_member_with_the_right_reads_what_its_account_asked(gateway_with: StartGateway) -> None:
    refusal = {"error": {"message": "of the provider alone"}}
    async with ScriptedUpstream([answer(COMPLETION)], [answer(refusal, 500)]) as up:
        settings = {"routing": {"max_attempts": 1, "trip_failures": 1000}}
        gateway = await gateway_with(config(up) | settings)
        office, ada = AdminApi(gateway), await make_administrator(gateway)
        ben = await invite(ada, "ben", "viewer", "acme")
        async with ada.session, ben.session:
            kept, failed = await ask(gateway, say("the words")), await ask(gateway)
            status, refused = await ben.call("GET", f"/requests/{kept}/body")
            assert (status, refused["error"]["code"]) == (403, "forbidden")
            assert "data-kept-body" not in (await ben.open(f"/requests/{kept}"))[1]
            assert "Only administrators and members with permission can read them." in (await ben.open("/account"))[1]
            member_path = f"/members/{await find_member_id(office, 'ben')}"
            assert (await office("PATCH", member_path, {"may_read_bodies": True}))["may_read_bodies"] is True
            status, shown = await ben.call("GET", f"/requests/{kept}/body")
            assert (status, shown["bodies"][0]["messages"][0]["text"]) == (200, "the words")
            assert f'data-kept-body="{kept}"' in (await ben.open(f"/requests/{kept}"))[1]
            text = (await ben.open("/account"))[1]
            assert "all requests" in text
            assert "You can read them" in text
            # A member sees no channels, and so not what these answered; an administrator does.
            _, shown = await ben.call("GET", f"/requests/{failed}/body")
            assert [body["kind"] for body in shown["bodies"]] == ["request", "answer"]
            _, shown = await ada.call("GET", f"/requests/{failed}/body")
            assert [body["kind"] for body in shown["bodies"]] == ["request", "answer", "provider_error"]
            await office("PATCH", member_path, {"may_read_bodies": False})
            assert (await ben.call("GET", f"/requests/{kept}/body"))[0] == 403
        looks = await office("GET", "/audit-trail?action=bodies.read")
        assert [row["actor"] for row in looks["data"]] == ["ada", "ben", "ben"]
        edits = await office("GET", "/audit-trail?action=member.edited")
        assert [row["detail"] for row in edits["data"]] == [
            {"may_read_bodies": [True, False]}, {"may_read_bodies": [False, True]},
        ]  # fmt: skip


async def test_the_right_is_for_the_own_account_alone(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        office, ada = AdminApi(gateway), await make_administrator(gateway)
        await office("POST", "/accounts", {"name": "rival"}, 201)
        eve = await invite(ada, "eve", "member", "rival")
        async with ada.session, eve.session:
            await office("PATCH", f"/members/{await find_member_id(office, 'eve')}", {"may_read_bodies": True})
            request_id = await ask(gateway)
            for prefix in (request_id, request_id[:12]):
                assert (await eve.call("GET", f"/requests/{prefix}/body"))[0] == 404
            assert (await eve.call("GET", "/bodies"))[0] == 403
            assert (await eve.call("POST", "/bodies/delete", {"request": request_id}))[0] == 403
        assert await office.list_trail("bodies") == []


async def test_a_member_does_not_learn_where_bodies_are(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream([answer(COMPLETION)]) as up:
        gateway = await gateway_with(config(up))
        office, ada = AdminApi(gateway), await make_administrator(gateway)
        ben = await invite(ada, "ben", "viewer", "acme")
        async with ada.session, ben.session:
            await office("PATCH", f"/members/{await find_member_id(office, 'ben')}", {"may_read_bodies": True})
            request_id = await ask(gateway, say("the words"))
            assert (await ben.call("GET", f"/requests/{request_id}/body"))[0] == 200
            (key,) = gateway.folder.path.glob("bodies/keys/*.key")
            key.unlink()
            key.mkdir()  # the error of the disk names the path
            status, shown = await ada.call("GET", f"/requests/{request_id}/body")
            assert (status, str(key) in shown["error"]["message"]) == (404, True)
            status, shown = await ben.call("GET", f"/requests/{request_id}/body")
            assert status == 404
            assert shown["error"]["message"].startswith("The bodies of this request cannot be read")
            assert str(key.parent) not in shown["error"]["message"]
            key.rmdir()


async def test_a_stream_is_put_together(gateway_with: StartGateway) -> None:
    async with ScriptedUpstream(chat_script("It is ", "now", " late")) as up:
        gateway = await gateway_with(config(up))
        request_id = await ask(gateway, {**say("the words"), "stream": True})
        asked, answered = (await AdminApi(gateway)("GET", f"/requests/{request_id}/body"))["bodies"]
        assert [message["text"] for message in asked["messages"]] == ["the words"]
        expected: dict[str, Any] = {
            "text": "It is now late",
            "reasoning": "",
            "tool_calls": [],
            "finish_reason": "stop",
        }
        assert answered["answers"] == [expected]
        assert (answered["redacted"], answered["cut"]) == (False, False)
