"""A gateway with a provider of videos."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import orjson
from yarl import URL

from gateway.server.context import SERVICES
from tests.support.gateway import KEY, RunningGateway
from tests.support.openai_videos import OpenAiVideos, Play
from tests.support.started_gateways import StartGateway

VIDEOS = "/v1/videos"


OTHER = "sk-test-key-of-another-account"


SISTER = "sk-test-key-of-the-same-account"


ACCOUNTS: dict[str, Any] = {
    "account": [{"name": "acme"}, {"name": "rival"}],
    "key": [
        {"name": "test", "account": "acme", "secret": KEY},
        {"name": "sister", "account": "acme", "secret": SISTER},
        {"name": "other", "account": "rival", "secret": OTHER},
    ],
}


Json = dict[str, Any]


@attrs.frozen
class Heard:
    """An answer, heard to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str | None]:
        """Status, code and the field at fault."""
        error = self.json["error"]
        assert error["type"] == "new_api_error"
        return self.status, error["code"], error["param"]


@attrs.frozen
class VideoGateway:
    """A gateway over one provider of videos."""

    gateway: RunningGateway
    provider: OpenAiVideos

    async def ask(self, method: str, path: str, *, key: str = KEY, json: Any = None, **more: Any) -> Heard:
        headers = {"Authorization": f"Bearer {key}", **more.pop("headers", {})}
        url = URL(self.gateway.url + path, encoded=True)
        async with self.gateway.client.request(method, url, json=json, headers=headers, **more) as response:
            return Heard(response.status, response.headers, await response.read())

    async def get(self, path: str, *, key: str = KEY, **headers: str) -> Heard:
        return await self.ask("GET", path, key=key, headers=headers)

    async def submit(self, prompt: str = "a cat", *, path: str = VIDEOS, key: str = KEY, **body: Any) -> Heard:
        return await self.ask("POST", path, key=key, json={"model": "m", "prompt": prompt, **body})

    async def begin(self, prompt: str = "a cat", **body: Any) -> str:
        """The id of a new job."""
        heard = await self.submit(prompt, **body)
        assert heard.status == 200, heard.body
        return str(heard.json["id"])

    async def finish(self, video_id: str) -> Json:
        """The task object, once the job has ended."""
        videos = self.gateway.app[SERVICES].videos
        async with asyncio.timeout(15), videos.notifier.listen(video_id) as bell:
            while not (await videos.jobs.get(video_id)).ended:
                await bell.wait()
                bell.clear()
        return dict((await self.get(f"{VIDEOS}/{video_id}")).json)

    async def make(self, prompt: str = "a cat", **body: Any) -> str:
        """The id of a job that has ended."""
        video_id = await self.begin(prompt, **body)
        await self.finish(video_id)
        return video_id


@asynccontextmanager
async def open_video_gateway(
    gateway_with: StartGateway,
    *others: OpenAiVideos,
    start: Mapping[str, Any] | None = None,
    plays: Any = None,
    **config: Any,
) -> AsyncIterator[VideoGateway]:
    """``config`` is laid over a channel, the accounts above and a fetcher that trusts this machine.

    ``others`` are providers who are asked where the first cannot be.
    """
    async with OpenAiVideos(Play(polls=["completed"]), **(plays or {})) as provider:
        spare = [other.channel(f"spare{number}", priority=-1) for number, other in enumerate(others)]
        usual = {"channel": [provider.channel(), *spare], "egress": {"allow": ["127.0.0.1"]}, **ACCOUNTS}
        yield VideoGateway(await gateway_with({**usual, **config}, **(start or {})), provider)
