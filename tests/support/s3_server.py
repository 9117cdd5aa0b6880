"""A small S3-compatible server: what the gateway uses of the API, with every signature checked.

docs.aws.amazon.com/AmazonS3/latest/API. Signatures are checked by rules written here from AWS's description of
Signature Version 4, not by the gateway's signer.
"""

import hashlib
import hmac
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape, unescape

import attrs
from aiohttp import web

ACCESS_KEY, SECRET_KEY, REGION, BUCKET = "AKIATESTS3SERVER", "made/up+secret", "eu-test-1", "gateway-media"
PAGE = 3
"""Objects in one page of a list."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=(\w{64})"
)
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@attrs.define
class StoredObject:
    body: bytes
    stored: datetime


@attrs.define
class S3Server:
    """One bucket in memory.

    Attributes:
        objects: by their keys.
        parts: of multipart uploads that are not complete, by upload id and part number.
        requests: method, key and query of every accepted request.
        fails: what requests are answered with; 0: they work.
        failed: how many were answered with ``fails``.
        cut: connections are closed without an answer.
        age: added to the age of everything stored from now on.
    """

    url: str = ""
    objects: dict[str, StoredObject] = attrs.Factory(dict)
    parts: dict[str, dict[int, bytes]] = attrs.Factory(dict)
    requests: list[tuple[str, str, str]] = attrs.Factory(list)
    refused: list[str] = attrs.Factory(list)
    fails: int = 0
    failed: int = 0
    cut: bool = False
    age: timedelta = timedelta()
    _ids: "itertools.count[int]" = attrs.Factory(itertools.count)

    @property
    def media_url(self) -> str:
        """The gateway's setting."""
        key, secret = quote(ACCESS_KEY, safe=""), quote(SECRET_KEY, safe="")
        return f"s3://{key}:{secret}@{BUCKET}/gw/one?endpoint={quote(self.url, safe='')}&region={REGION}"

    def list_keys(self, folder: str) -> list[str]:
        """The names below a folder of the gateway's."""
        prefix = f"gw/one/{folder}/"
        return sorted(key.removeprefix("gw/one/") for key in self.objects if key.startswith(prefix))

    def age_all(self, by: timedelta) -> None:
        """Let everything have been stored earlier."""
        for one in self.objects.values():
            one.stored -= by

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handle(request)
        response.force_close()  # a connection that is kept would have a task, which tests of gateways look for
        return response

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        path, _, query = request.raw_path.partition("?")
        if self.cut:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.fails:
            self.failed += 1
            return _refuse(self.fails, "InternalError")
        problem = find_signature_problem(request, path, query, body)
        if problem:
            self.refused.append(problem)
            return _refuse(403, "SignatureDoesNotMatch")
        bucket, _, key = unquote(path).removeprefix("/").partition("/")
        if bucket != BUCKET:
            return _refuse(404, "NoSuchBucket")
        self.requests.append((request.method, key, query))
        return self._answer(request, key, dict(parse_qsl(query, keep_blank_values=True)), body)

    def _answer(self, request: web.BaseRequest, key: str, query: dict[str, str], body: bytes) -> web.Response:
        if "list-type" in query:
            return self._list(query)
        if "delete" in query:
            return self._delete_all(body)
        if "uploads" in query or "uploadId" in query:
            return self._handle_multipart(request.method, key, query, body)
        if request.method == "PUT":
            return self._put(key, body)
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return web.Response(status=204)
        found = self.objects.get(key)
        return _refuse(404, "NoSuchKey") if found is None else _send(request, found)

    def _put(self, key: str, body: bytes) -> web.Response:
        self.objects[key] = StoredObject(body, datetime.now(UTC) - self.age)
        return web.Response(headers={"ETag": _make_tag(body)})

    def _handle_multipart(self, method: str, key: str, query: dict[str, str], body: bytes) -> web.Response:
        if "uploads" in query:
            upload = f"upload-{next(self._ids)}"
            self.parts[upload] = {}
            return _write("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        parts = self.parts.get(query["uploadId"])
        if parts is None:
            return _refuse(404, "NoSuchUpload")
        if method == "PUT":
            parts[int(query["partNumber"])] = body
            return web.Response(headers={"ETag": _make_tag(body)})
        del self.parts[query["uploadId"]]
        if method == "DELETE":
            return web.Response(status=204)
        named = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        self._put(key, b"".join(parts[number] for number in named))
        return _write("CompleteMultipartUploadResult", f"<Key>{escape(key)}</Key><ETag>{_make_tag(b'')}</ETag>")

    def _list(self, query: dict[str, str]) -> web.Response:
        after, prefix = query.get("continuation-token", ""), query.get("prefix", "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key].body)}</Size>"
            f"<LastModified>{self.objects[key].stored:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
            f"<ETag>{escape(_make_tag(self.objects[key].body))}</ETag></Contents>"
            for key in keys[:PAGE]
        )
        more = len(keys) > PAGE
        token = f"<NextContinuationToken>{escape(keys[PAGE - 1])}</NextContinuationToken>" if more else ""
        return _write("ListBucketResult", f"{page}<IsTruncated>{str(more).lower()}</IsTruncated>{token}")

    def _delete_all(self, body: bytes) -> web.Response:
        named = [unescape(key) for key in re.findall(r"<Key>([^<]*)</Key>", body.decode())]
        for key in named:
            self.objects.pop(key, None)
        return _write("DeleteResult", "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in named))


@asynccontextmanager
async def start_s3_server() -> AsyncIterator[S3Server]:
    server = S3Server()
    runner = web.ServerRunner(web.Server(server.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def find_signature_problem(request: web.BaseRequest, path: str, query: str, body: bytes) -> str:
    """What is wrong with a request's signature; empty: nothing."""
    found = _AUTHORIZATION.fullmatch(request.headers.get("Authorization", ""))
    if found is None:
        return "no signature"
    key, day, region, names, signature = found.groups()
    date, payload = request.headers["X-Amz-Date"], request.headers["X-Amz-Content-Sha256"]
    age = datetime.now(UTC) - datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    if (key, region, day) != (ACCESS_KEY, REGION, date[:8]) or abs(age) > timedelta(minutes=15):
        return "another key, region or time"
    if payload not in {"UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()}:
        return "another body"
    if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(names.split(";")):
        return "a header is not signed"
    pairs = sorted(pair if "=" in pair else f"{pair}=" for pair in query.split("&")) if query else []
    headers = "".join(f"{name}:{' '.join(request.headers[name].split())}\n" for name in names.split(";"))
    canonical = "\n".join((request.method, path, "&".join(pairs), headers, names, payload))
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signing = f"AWS4{SECRET_KEY}".encode()
    for part in (day, region, "s3", "aws4_request"):
        signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
    expected = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
    return "" if hmac.compare_digest(expected, signature) else "another signature"


def _send(request: web.BaseRequest, found: StoredObject) -> web.Response:
    size = len(found.body)
    headers = {"Last-Modified": f"{found.stored:%a, %d %b %Y %H:%M:%S GMT}", "ETag": _make_tag(found.body)}
    if request.method == "HEAD":
        return web.Response(headers=headers | {"Content-Length": str(size)})
    wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
    if wanted is None:
        return web.Response(body=found.body, headers=headers)
    start, stop = int(wanted[1]), min(int(wanted[2]) + 1, size)
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return web.Response(status=206, body=found.body[start:stop], headers=headers)


def _make_tag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _write(root: str, inside: str) -> web.Response:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{_NAMESPACE}">{inside}</{root}>'
    return web.Response(text=text, content_type="application/xml")


def _refuse(status: int, code: str) -> web.Response:
    text = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return web.Response(status=status, text=text, content_type="application/xml")
