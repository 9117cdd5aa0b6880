"""What a handler returns becomes a response of the API; a page of the console gets it as it is."""

import inspect
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gateway.server.admin.handler import AdminHandler, AdminRequest
from gateway.server.admin.routes import list_admin_operations


async def respond(found: Any, **facts: Any) -> web.StreamResponse:
    async def handle(request: AdminRequest) -> Any:
        request.finish.append(lambda response: response.set_cookie("seen", request.query["a"]))
        return found

    return await AdminHandler(function=handle, **facts).respond(make_mocked_request("GET", "/x?a=1"))


@pytest.mark.parametrize(
    ("found", "facts", "status", "body"),
    [
        ({"name": "a", "on": True}, {}, 200, b'{"name":"a","on":true}'),
        ({"name": "ü"}, {"status": 201}, 201, '{"name":"ü"}'.encode()),
        ([{"id": 1}, {"id": 2}], {}, 200, b'{"object":"list","data":[{"id":1},{"id":2}]}'),
        ([], {}, 200, b'{"object":"list","data":[]}'),
        ({"words": ("a", "b")}, {}, 200, b'{"words":["a","b"]}'),
    ],
)
async def test_data_becomes_json(found: Any, facts: dict[str, Any], status: int, body: bytes) -> None:
    response = await respond(found, **facts)
    assert isinstance(response, web.Response)
    assert (response.status, response.body, response.content_type) == (status, body, "application/json")
    assert response.cookies["seen"].value == "1"


async def test_a_response_is_passed_on() -> None:
    streamed = web.StreamResponse(status=404)
    assert await respond(streamed, status=201) is streamed


def test_only_streams_make_a_response_of_their_own() -> None:
    for operation in list_admin_operations():
        handler = operation.handler
        returned = inspect.signature(handler.function).return_annotation
        streams = handler.media_type != "application/json"
        assert (returned is web.StreamResponse) == streams, (operation.method, operation.path)
        assert not streams or not handler.change
