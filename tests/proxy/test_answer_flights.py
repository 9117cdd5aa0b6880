"""Equal requests at one moment: who waits for whom, and what becomes of them if the first one fails."""

import asyncio

from gateway.domain.cached_answer import CachedAnswer
from gateway.domain.usage import NO_USAGE
from gateway.proxy.answer_flights import AnswerFlights

ANSWER = CachedAnswer(
    digest="d", form="json", media_type="", body=b"{}", usage=NO_USAGE, answered="", source="", adapted="",
    account_id=1, key_id=1, end_user="", stored_ms=0, expires_ms=1,
)  # fmt: skip


async def test_all_who_wait_get_the_answer() -> None:
    flights = AnswerFlights()
    flight = flights.start("d")
    waits = [asyncio.ensure_future(flight.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert flight.waiting == 3
    assert flights.find("d") is flight
    flight.end(ANSWER)
    assert await asyncio.gather(*waits) == [ANSWER] * 3
    assert (flight.waiting, flights.find("d")) == (0, None)


async def test_a_second_end_changes_neither_the_answer_nor_a_later_flight() -> None:
    flights = AnswerFlights()
    flight = flights.start("d")
    flight.end(ANSWER)
    later_flight = flights.start("d")
    flight.end(None)
    assert flights.find("d") is later_flight
    assert await flight.wait() == ANSWER


async def test_who_leaves_takes_nothing_from_the_others() -> None:
    flight = AnswerFlights().start("d")
    leaver, stayer = asyncio.ensure_future(flight.wait()), asyncio.ensure_future(flight.wait())
    await asyncio.sleep(0)
    leaver.cancel()
    await asyncio.wait({leaver})
    assert flight.waiting == 1
    flight.end(None)
    assert await stayer is None
