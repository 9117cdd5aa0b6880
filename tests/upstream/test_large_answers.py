"""Large answers that are read at the same time: past the limit only the oldest goes on."""

import asyncio

from gateway.upstream.large_answers import LargeAnswers


async def test_only_the_oldest_is_read_past_the_limit_and_the_next_when_it_ends() -> None:
    whole = LargeAnswers(10)
    with whole.open_share() as third:
        with whole.open_share() as first, whole.open_share() as second:
            assert first.resize(6)
            assert not second.resize(5)
            assert first.resize(60)
            waiting = asyncio.create_task(second.wait())
            await asyncio.sleep(0)
            first.resize(5)
            first.resize(0)
            await waiting
            assert not third.resize(6)
            assert second.resize(6)
        assert third.resize(50)


async def test_all_that_wait_go_on_once_there_is_room() -> None:
    whole = LargeAnswers(10)
    shares = [whole.open_share() for _ in range(4)]
    assert [share.resize(4) for share in shares] == [True, True, False, False]
    waiting = [asyncio.create_task(share.wait()) for share in shares[2:]]
    await asyncio.sleep(0)
    shares[1].resize(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)  # 12 bytes
    shares[0].resize(0)
    await asyncio.gather(*waiting)
