"""The ``users`` command while no gateway is running."""

import asyncio
import time
from pathlib import Path

from click.testing import CliRunner

from gateway.cli.main import main
from gateway.domain.cached_answer import CachedAnswer
from gateway.domain.usage import NO_USAGE
from gateway.storage.answer_cache import AnswerCache
from gateway.storage.encryption import SecretBox


def open_cache(data: Path) -> AnswerCache:
    return AnswerCache(data / "cache", SecretBox(bytes(32)), find_max_bytes=lambda: 10**9, clock=time.time)


async def test_a_user_is_forgotten_in_the_answers_of_an_earlier_process(data: Path) -> None:
    now_ms = int(time.time() * 1000)
    answer = CachedAnswer(
        digest="d", form="json", media_type="", body=b"{}", usage=NO_USAGE, answered="", source="", adapted="",
        account_id=1, key_id=1, end_user="ann", stored_ms=now_ms, expires_ms=now_ms + 10**9,
    )  # fmt: skip
    cache = open_cache(data)
    cache.put(answer)
    await cache.close()
    words = ["users", "forget", "ann", "--yes", "--data", str(data)]
    result = await asyncio.to_thread(lambda: CliRunner().invoke(main, words, env={"GATEWAY_DISCOVER": "0"}))
    assert result.exit_code == 0, result.output
    later = open_cache(data)
    assert await later.find("d") == []
    await later.close()
