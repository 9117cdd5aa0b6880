"""Pictures that a provider names by an address: what cannot or must not be fetched costs nothing and shows nothing."""

import base64
from collections.abc import Sequence
from typing import Any, Self

import aiohttp
import orjson
import pytest
from structlog.testing import capture_logs

from gateway.domain.image import MAX_IMAGE_BYTES
from gateway.upstream.safe_fetch import MAX_REDIRECTS
from tests.support.fault_scene import Heard, check_charged_once, check_error, drop_own_words, hear, until
from tests.support.gateway import RunningGateway, channel
from tests.support.image_providers import draw, measure
from tests.support.image_scene import (
    A_IMAGE,
    DATA,
    DATA_URL,
    PAINTED,
    PRICE,
    ask,
    audit,
    audit_books,
    check_images,
    check_row,
    healthy,
    site,
)
from tests.support.scripted_upstream import FIN, RST, STALL, Flood, Script, ScriptedUpstream, answer, chunk
from tests.support.started_gateways import StartGateway

MB = 1024 * 1024
PNG = answer(draw(), content_type="image/png")
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
METADATA = "http://169.254.169.254/latest/meta-data/iam/security-credentials/"
SIGNATURE = "X-Amz-Signature=deadbeefdeadbeef"
SCRIPTED = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(document.cookie)</script></svg>'


def named(url: str) -> bytes:
    """An answer that has a picture by its address."""
    return answer({"created": 1, "data": [{"url": url}]})


def find_file(up: ScriptedUpstream) -> str:
    """An address on a server, as object stores sign them."""
    return f"http://127.0.0.1:{up.port}/files/1.png?{SIGNATURE}"


class NamedUpstream(ScriptedUpstream):
    """A provider whose pictures lie at its own origin: it names one, and plays the scripts in its place, in turn.

    The connection on which it was asked is closed, so that none is left but those to the file.
    """

    def __init__(self, *files: Sequence[Script]) -> None:
        super().__init__()
        self._files = files

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        named = answer({"created": 1, "data": [{"url": find_file(self)}]}, connection="close")
        begun: Script = [named, FIN]
        self._scripts = [script for file in self._files for script in (begun, *file)]
        return self


def moved(url: str) -> bytes:
    return answer(b"", 302, location=url)


MOVED: dict[str, Sequence[Script]] = {
    "to the metadata service": [[moved(METADATA)]],
    "to a private address": [[moved("http://10.1.2.3/picture.png")]],
    "to this machine, by another name": [[moved("http://localhost:8080/picture.png")]],
    "round in circles": [[moved("/files/1.png")]] * (1 + MAX_REDIRECTS),
    "to a file": [[moved("file:///etc/passwd")]],
    "nowhere": [[answer(b"", 302)]],
}
LARGE: dict[str, Sequence[Script]] = {
    "as it says": [[b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_IMAGE_BYTES + 1), STALL]],
    "without saying so": [[CHUNKED, Flood(chunk(b"\x89PNG\r\n\x1a\n" + b"x" * MB), 33), STALL]],
    "without an end": [[CHUNKED, Flood(chunk(b"\x89PNG\r\n\x1a\n" + b"x" * MB), 1_000)]],
}
BROKEN: dict[str, Sequence[Script]] = {
    "a page": [[answer(b"<!DOCTYPE html><html>expired</html>", content_type="text/html")]],
    "a page that says it is an image": [[answer(b"<html>expired</html>", content_type="image/png")]],
    "a sound": [[answer(b"ID3\x04\x00\x00\x00\x00\x00\x00", content_type="image/png")]],
    "nothing": [[answer(b"", content_type="image/png")]],
    "cut off": [[PNG[:-9], FIN]],
    "reset": [[PNG[:-9], 0.01, RST]],
    "never there": [[RST]],
    "no HTTP": [[b"WHAT\r\n\r\n", FIN]],
    "404": [[answer(b"<Error>NoSuchKey</Error>", 404)]],
    "403": [[answer(b"<Error>AccessDenied</Error>", 403)]],
    "500": [[answer(b"", 500)]],
    "206": [[answer(draw(), 206, content_type="image/png")]],
    "not compressed as it says": [[answer(b"not gzip", content_encoding="gzip")]],
}


def check_silent(heard: Heard, name: str = "") -> None:
    """Nothing of where anything lies."""
    text = drop_own_words(heard.body.decode() + str(heard.headers))
    for word in ("127.0.0.1", "169.254", "10.1.2.3", "8080", "etc/passwd", "deadbeef", "files/1.png", "NoSuchKey"):
        assert word not in text, (name, text)


@pytest.mark.parametrize("files", [MOVED, LARGE, BROKEN], ids=["moved", "too large", "broken"])
async def test_a_image_that_cannot_be_had_is_the_next_channel_s_to_paint(
    standing_with: StartGateway, files: dict[str, Sequence[Script]]
) -> None:
    """One is charged. The log says what went wrong, and not how the address was signed."""
    async with NamedUpstream(*files.values()) as up, ScriptedUpstream([PAINTED]) as good:
        gateway = await standing_with(site(channel(up.base_url, "naming"), healthy(good)))
        with capture_logs() as lines:
            for name in files:
                heard = await ask(gateway)
                check_images(orjson.loads(heard.body)["data"], 1)
                assert heard.headers["x-gateway-tried"].startswith("upstream_error;"), name
        rows = await gateway.rows(len(files))
        for row in rows:
            check_row(row, outcome="completed", channel="healthy", attempts=2, images=1)
        await audit_books(gateway, up)
        check_charged_once(gateway, len(files) * A_IMAGE)
        assert len([line for line in lines if line["event"] == "attempt_failed"]) == len(files)
        assert "deadbeef" not in str(lines)
        assert up.flooded < 80 * MB


@pytest.mark.parametrize("files", [MOVED, BROKEN], ids=["moved", "broken"])
async def test_whoever_cannot_have_a_image_is_told_so_and_pays_nothing(
    standing_with: StartGateway, files: dict[str, Sequence[Script]]
) -> None:
    async with NamedUpstream(*files.values()) as up:
        gateway = await standing_with(site(channel(up.base_url, "naming")))
        for name in files:
            heard = await ask(gateway, response_format="url")
            check_error(heard, "upstream_error")
            check_silent(heard, name)
        for row in await gateway.rows(len(files)):
            check_row(row, outcome="failed", status=502, images=0, attempts=1)
        await audit_books(gateway, up)
        check_charged_once(gateway, 0)


async def test_a_file_that_never_comes_is_waited_for_no_longer_than_the_channel_may(
    standing_with: StartGateway,
) -> None:
    async with NamedUpstream([[PNG[:-9], STALL]]) as up, ScriptedUpstream([PAINTED]) as good:
        gateway = await standing_with(site(channel(up.base_url, "naming", total_timeout_s=0.2), healthy(good)))
        heard = await ask(gateway)
        assert heard.status == 200
        assert heard.headers["x-gateway-tried"].startswith("upstream_timeout;")
        await until(up.hung_up.is_set)
        await audit(gateway, up, outcome="completed", channel="healthy", attempts=2)


PRIVATE = [
    METADATA,
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://127.0.0.1:{port}/files/1.png",
    "http://localhost:{port}/files/1.png",
    "http://[::ffff:127.0.0.1]:{port}/files/1.png",
    "http://2130706433:{port}/files/1.png",
    "http://user@127.0.0.1:{port}/files/1.png",
    "https://127.0.0.1:{port}/files/1.png",
    "HTTP://127.0.0.1:{port}/files/1.png",
    "http://192.168.1.1/admin",
    "http://10.0.0.1:25/",
]


async def test_no_address_of_a_private_place_is_fetched_or_shown(standing_with: StartGateway) -> None:
    """The victim stands beside the provider, on another port, and hears of nobody."""
    async with ScriptedUpstream([PNG]) as victim:
        urls = [url.replace("{port}", str(victim.port)) for url in PRIVATE]
        async with ScriptedUpstream(*([named(url)] for url in urls)) as up:
            gateway = await standing_with(site(channel(up.base_url)))
            for number, url in enumerate(urls):
                heard = await ask(gateway, response_format=("url", "b64_json")[number % 2])
                check_error(heard, "upstream_error")
                check_silent(heard, url)
                assert str(victim.port) not in heard.body.decode(), url
            for row in await gateway.rows(len(urls)):
                check_row(row, outcome="failed", images=0, attempts=1)
            await audit_books(gateway)
            assert (victim.connections, victim.received) == (0, [])
            assert len(up.received) == len(urls)


async def test_every_file_of_several_has_to_be_had(standing_with: StartGateway) -> None:
    """One that cannot be fetched spoils the whole: nobody is charged for half of what they asked for."""
    async with ScriptedUpstream([PNG], [answer(b"", 404)]) as files:
        data = [{"b64_json": DATA}, {"url": find_file(files)}, {"url": find_file(files)}]
        async with ScriptedUpstream([answer({"data": data})]) as up:
            gateway = await standing_with(site(channel(up.base_url), egress={"allow": ["127.0.0.1"]}))
            check_error(await ask(gateway, n=3), "upstream_error")
            await audit(gateway, files, outcome="failed", cost_nanos=0, images=0)


async def download(gateway: RunningGateway, heard: Heard) -> tuple[Heard, str]:
    """What lies at the address in an answer, and the address."""
    assert heard.status == 200, heard
    (item,) = orjson.loads(heard.body)["data"]
    assert item.keys() <= {"url", "revised_prompt"}
    assert item["url"].startswith(f"{gateway.url}/media/"), item["url"]
    async with aiohttp.ClientSession() as anonymous, anonymous.get(item["url"]) as response:
        return await hear(response), item["url"]


async def test_the_channel_s_own_server_may_be_anywhere(standing_with: StartGateway) -> None:
    async with NamedUpstream([[PNG]]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        file, _ = await download(gateway, await ask(gateway, response_format="url"))
        assert measure(file.body) == (8, 8)
        assert file.headers["Content-Type"] == "image/png"
        fetch = up.received[1]
        assert (fetch.method, fetch.path) == ("GET", f"/files/1.png?{SIGNATURE}")
        assert not {"authorization", "cookie", "referer"} & fetch.headers.keys()
        await audit(gateway, outcome="completed", images=1)


async def test_a_network_that_is_allowed_is_fetched_from(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([PNG]) as files, ScriptedUpstream([named(find_file(files))]) as up:
        gateway = await standing_with(site(channel(up.base_url), egress={"allow": ["127.0.0.0/8"]}))
        check_images(orjson.loads((await ask(gateway)).body)["data"], 1)
        await audit(gateway, files, outcome="completed", images=1)
        assert len(files.received) == 1


async def test_an_address_that_passes_is_passed_as_it_is_but_not_to_those_who_want_the_image(
    standing_with: StartGateway,
) -> None:
    url = f"{METADATA}?a=%2F&b=ü"
    async with ScriptedUpstream([named(url)]) as up:
        gateway = await standing_with(site(channel(up.base_url, pass_urls=True)))
        passed = await ask(gateway, response_format="url")
        assert orjson.loads(passed.body)["data"] == [{"url": url}]
        refused = await ask(gateway)
        check_error(refused, "upstream_error")
        check_silent(refused)
        check_error(await ask(gateway, stream=True), "upstream_error")
        rows = await gateway.rows(3)
        assert [row.cost_nanos for row in rows] == [A_IMAGE, 0, 0]
        for row in rows:
            check_row(row, attempts=1)
        await audit_books(gateway)


# Pictures that are in the answer.


@pytest.mark.parametrize("item", [{"url": DATA_URL}, {"b64_json": DATA_URL}], ids=["as an address", "as base64"])
async def test_a_data_url_is_a_image(standing_with: StartGateway, item: dict[str, str]) -> None:
    async with ScriptedUpstream([answer({"data": [item]})]) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        (reported,) = orjson.loads((await ask(gateway)).body)["data"]
        assert reported == {"b64_json": DATA}
        file, _ = await download(gateway, await ask(gateway, response_format="url"))
        assert file.body == draw()
        assert [row.images for row in await gateway.rows(2)] == [1, 1]


WORTHLESS: dict[str, dict[str, Any]] = {
    "garbage": {"b64_json": "!!!! no base64 at all !!!!"},
    "cut base64": {"b64_json": DATA[:-3]},
    "a page": {"b64_json": base64.b64encode(b"<html>").decode()},
    "nothing": {"b64_json": ""},
    "a number": {"b64_json": 5},
    "a list": {"url": ["http://a/"]},
    "no words": {},
    "a data URL of a page": {"url": "data:text/html;base64,PGh0bWw+"},
    "a data URL without base64": {"url": "data:image/svg+xml,<svg/>"},
    "a script": {"url": "javascript:alert(1)"},
    "a path": {"url": "/files/1.png"},
    "a file": {"url": "file:///etc/passwd"},
}


async def test_what_is_no_image_is_the_next_channel_s_to_paint(standing_with: StartGateway) -> None:
    scripts = [[answer({"data": [item]})] for item in WORTHLESS.values()]
    async with ScriptedUpstream(*scripts) as up, ScriptedUpstream([PAINTED]) as good:
        gateway = await standing_with(site(channel(up.base_url, "worthless"), healthy(good)))
        for number, name in enumerate(WORTHLESS):
            heard = await ask(gateway, stream=number % 2 == 1)
            assert heard.status == 200, (name, heard)
            assert heard.headers["x-gateway-tried"].startswith("upstream_error;"), name
            assert DATA.encode() in heard.body
            check_silent(heard, name)
        for row in await gateway.rows(len(WORTHLESS)):
            check_row(row, outcome="completed", channel="healthy", attempts=2, images=1)
        await audit_books(gateway)
        check_charged_once(gateway, len(WORTHLESS) * A_IMAGE)


@pytest.mark.parametrize("fetched", [False, True], ids=["in the answer", "fetched"])
async def test_a_image_that_can_hold_a_script_is_saved_and_never_run(
    standing_with: StartGateway, *, fetched: bool
) -> None:
    reported = answer({"data": [{"b64_json": base64.b64encode(SCRIPTED).decode()}]})
    file = answer(SCRIPTED, content_type="text/html")
    async with NamedUpstream([[file]]) if fetched else ScriptedUpstream([reported]) as up:
        gateway = await standing_with({"channel": [channel(up.base_url)], "price": [PRICE]})
        served, url = await download(gateway, await ask(gateway, response_format="url"))
        assert served.body == SCRIPTED
        assert url.partition("?")[0].endswith(".svg")
        headers = {name: served.headers[name] for name in ("Content-Type", "X-Content-Type-Options")}
        assert headers == {"Content-Type": "image/svg+xml", "X-Content-Type-Options": "nosniff"}
        assert served.headers["Content-Disposition"].startswith("attachment;")
        assert served.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        await audit(gateway, outcome="completed", images=1)
