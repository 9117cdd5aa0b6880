"""The store of answers: what is found again after a restart, what is deleted, and that it stays within its bounds."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from gateway.domain.cached_answer import CachedAnswer
from gateway.domain.usage import Usage, UsageDetails
from gateway.storage.answer_cache import AnswerCache
from gateway.storage.encryption import SecretBox

NOW_S = 1_000.0
USAGE = Usage(3, 4, 1, "upstream", details=UsageDetails(tier="flex", cost_nanos=7), reasoning_tokens=2)
ANSWER = CachedAnswer(
    digest="d1", form="json", media_type="application/json", body=b"a secret text", usage=USAGE, answered="m-1",
    source="s", adapted="seed", account_id=1, key_id=2, end_user="ann", stored_ms=1_000_000, expires_ms=1_060_000,
)  # fmt: skip


def open_cache(
    folder: Path,
    clock: Callable[[], float] = lambda: NOW_S,
    root: bytes = bytes(32),
    max_bytes: int = 10**9,
    **options: Any,
) -> AnswerCache:
    return AnswerCache(folder, SecretBox(root), find_max_bytes=lambda: max_bytes, clock=clock, **options)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read waits for a busy machine, too: one that takes more than 0.2 s finds nothing."""
    monkeypatch.setattr("gateway.storage.answer_cache.FIND_TIMEOUT_S", 30.0)


async def test_an_answer_is_found_again_after_a_restart(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put(ANSWER)
    assert cache.find_in_memory("d1") == [ANSWER]
    await cache.close()
    later = open_cache(tmp_path)
    assert later.find_in_memory("d1") == []
    (found,) = await later.find("d1")
    assert found == ANSWER
    assert found.usage.reasoning_tokens == 2
    assert later.find_in_memory("d1") == [ANSWER]
    await later.close()


async def test_nothing_readable_is_on_the_disk(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put(ANSWER)
    await cache.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"secret text" not in stored
    other = open_cache(tmp_path, root=b"1" * 32)
    assert await other.find("d1") == []
    other.put(ANSWER)  # under a new data key
    assert (await other.describe()).answers == 1
    await other.close()
    again = open_cache(tmp_path, root=b"1" * 32)
    assert await again.find("d1") == [ANSWER]
    await again.close()


async def test_what_has_expired_is_neither_given_nor_kept(tmp_path: Path) -> None:
    now_s = NOW_S
    cache = open_cache(tmp_path, clock=lambda: now_s)
    cache.put(ANSWER)
    now_s = 1_060.0
    assert (cache.find_in_memory("d1"), await cache.find("d1")) == ([], [])
    await cache.sweep()
    assert (await cache.describe()).memory_bytes == 0
    await cache.close()
    with sqlite3.connect(tmp_path / "answers.db") as connection:
        assert connection.execute("SELECT count(*) FROM answers").fetchone() == (0,)


async def test_deletion_by_account_and_user(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    others = [attrs.evolve(ANSWER, digest="d2", end_user="bob"), attrs.evolve(ANSWER, digest="d3", account_id=9)]
    for answer in (ANSWER, *others):
        cache.put(answer)
    assert await cache.delete(account_id=1, end_users=["ann", "eve"]) == 1
    assert [len(await cache.find(digest)) for digest in ("d1", "d2", "d3")] == [0, 1, 1]
    assert await cache.delete(account_id=1) == 1
    assert [len(await cache.find(digest)) for digest in ("d2", "d3")] == [0, 1]
    assert not (tmp_path / "keys" / "1.key").exists()
    assert await cache.delete() == 1
    assert cache.find_in_memory("d3") == []
    await cache.close()


@pytest.mark.parametrize("account_id", [None, 1])
async def test_what_was_stored_later_outlasts_a_deletion(tmp_path: Path, account_id: int | None) -> None:
    cache = open_cache(tmp_path)
    later = attrs.evolve(ANSWER, digest="d2", stored_ms=ANSWER.stored_ms + 1)
    for answer in (ANSWER, later):
        cache.put(answer)
    assert await cache.delete(account_id=account_id, before_ms=later.stored_ms) == 1
    assert [len(cache.find_in_memory(digest)) for digest in ("d1", "d2")] == [0, 1]
    await cache.close()
    cache = open_cache(tmp_path)
    assert [len(await cache.find(digest)) for digest in ("d1", "d2")] == [0, 1]
    await cache.close()


async def test_a_deletion_while_an_answer_is_read_leaves_nothing_in_memory(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put(ANSWER)
    await cache.close()
    later = open_cache(tmp_path)
    reading = asyncio.ensure_future(later.find("d1"))
    await asyncio.sleep(0)  # the thread has been asked
    assert await later.delete(end_users=["ann"]) == 1
    assert await reading == []
    assert later.find_in_memory("d1") == []
    await later.close()


async def test_reads_get_in_between_the_steps_of_a_deletion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.storage.answer_cache._WINDOW_ROWS", 5)
    cache = open_cache(tmp_path, max_memory_bytes=0)
    for number in range(300):
        cache.put(attrs.evolve(ANSWER, digest=f"d{number}"))
    cache.put(attrs.evolve(ANSWER, digest="other", account_id=9))
    assert len(await cache.find("d299")) == len(await cache.find("other")) == 1
    deleting = asyncio.ensure_future(cache.delete(end_users=["ann"], account_id=1))
    await asyncio.sleep(0)
    assert len(await cache.find("other")) == 1
    assert await cache.find("d299") == []  # it is still on the disk
    assert not deleting.done()
    cache.put(attrs.evolve(ANSWER, digest="d299", stored_ms=1_000_001))  # asked anew meanwhile
    assert len(await cache.find("d299")) == 1
    assert await deleting == 299  # and one was replaced
    assert (await cache.describe()).answers == 2
    await cache.close()


async def test_a_deletion_that_fails_leaves_nothing_that_is_given(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, max_memory_bytes=0)
    cache.put(ANSWER)
    cache.put(attrs.evolve(ANSWER, digest="d2", end_user="bob"))
    await cache.describe()
    with sqlite3.connect(tmp_path / "answers.db") as connection:
        connection.execute("CREATE TRIGGER t BEFORE DELETE ON answers BEGIN DELETE FROM missing; END")
    with pytest.raises(OSError, match="cannot be changed"):
        await cache.delete(end_users=["ann"])
    assert [len(await cache.find(digest)) for digest in ("d1", "d2")] == [0, 1]
    await cache.close()


async def test_a_large_mass_that_expired_is_deleted_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.storage.answer_cache._PORTION_ROWS", 7)
    now_s = NOW_S
    cache = open_cache(tmp_path, clock=lambda: now_s, max_memory_bytes=0)
    for number in range(100):
        cache.put(attrs.evolve(ANSWER, digest=f"d{number}", body=bytes(range(256)) * 40))
    cache.put(attrs.evolve(ANSWER, digest="later", expires_ms=9_000_000))
    await cache.describe()
    now_s = NOW_S + 3_600
    sweeping = asyncio.ensure_future(cache.sweep())
    await asyncio.sleep(0)
    assert len(await cache.find("later")) == 1
    assert not sweeping.done()
    await sweeping
    with sqlite3.connect(tmp_path / "answers.db") as connection:
        assert connection.execute("SELECT digest FROM answers").fetchall() == [("later",)]
        assert connection.execute("PRAGMA freelist_count").fetchone() == (0,)
    await cache.close()


async def test_the_oldest_answers_go_when_the_file_is_too_large(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, max_bytes=400_000, max_memory_bytes=100_000)
    bodies = [bytes(range(256)) * 16 + number.to_bytes(4, "big") * 500 for number in range(300)]
    for number, body in enumerate(bodies):
        noise = SecretBox(bytes(32)).seal(body, context=str(number))  # which cannot be compressed
        cache.put(attrs.evolve(ANSWER, digest=f"d{number}", body=noise))
    status = await cache.describe()
    assert 30 < status.answers < 100
    assert status.bytes <= 400_000
    assert status.memory_bytes <= 100_000
    assert await cache.find("d0") == []
    assert len(await cache.find("d299")) == 1
    await cache.close()
    assert (tmp_path / "answers.db").stat().st_size <= 500_000


async def test_a_damaged_file_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "answers.db").write_bytes(b"no database at all" * 1_000)
    cache = open_cache(tmp_path)
    cache.put(ANSWER)
    status = await cache.describe()
    assert (status.answers, status.problem) == (1, "")
    await cache.close()


async def test_a_disk_that_fails_leaves_what_is_in_memory(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.write_bytes(b"a file where the folder should be")
    cache = open_cache(folder)
    cache.put(ANSWER)
    status = await cache.describe()
    assert status.problem
    assert cache.find_in_memory("d1") == [ANSWER]
    folder.unlink()
    cache.put(attrs.evolve(ANSWER, digest="d2"))
    assert len(await cache.find("d2")) == 1
    assert (await cache.describe()).problem == ""
    await cache.close()


async def test_a_node_begins_with_nothing(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put(ANSWER)
    await cache.close()
    node = open_cache(tmp_path, keeps_stored=False)
    assert await node.find("d1") == []
    node.put(ANSWER)
    assert len(await node.find("d1")) == 1
    await node.close()


async def test_a_read_does_not_replace_a_newer_answer(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put(ANSWER)
    await cache.close()
    later, newer = open_cache(tmp_path), attrs.evolve(ANSWER, body=b"newer", stored_ms=1_000_500)
    reading = asyncio.ensure_future(later.find("d1"))
    await asyncio.sleep(0)  # the thread has been asked
    later.put(newer)
    assert await reading == [newer]
    assert later.find_in_memory("d1") == [newer]
    await later.close()


async def test_a_file_that_hangs_has_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.storage.answer_cache.FIND_TIMEOUT_S", 0.01)
    cache, gate = open_cache(tmp_path), threading.Event()
    cache.put(ANSWER)
    await cache.describe()
    cache._forget(("d1", "json"))
    hanging = cache._in_thread(gate.wait)
    try:
        assert await cache.find("d1") == []
    finally:
        gate.set()
    await hanging
    monkeypatch.setattr("gateway.storage.answer_cache.FIND_TIMEOUT_S", 30.0)
    assert await cache.find("d1") == [ANSWER]
    await cache.close()


async def test_an_answer_of_another_version_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = open_cache(tmp_path)
    monkeypatch.setattr("gateway.storage.answer_cache._TEXT_FIELDS", ("media_type", "answered", "source"))
    cache.put(ANSWER)
    await cache.close()
    later = open_cache(tmp_path)
    assert await later.find("d1") == []
    await later.close()


async def test_a_key_whose_destruction_was_interrupted_is_destroyed_at_the_start(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    cache.put(ANSWER)
    await cache.close()
    (tmp_path / "keys" / "1.key").rename(tmp_path / "keys" / "1.dead")
    later = open_cache(tmp_path)
    assert await later.find("d1") == []
    assert list((tmp_path / "keys").iterdir()) == []
    await later.close()
