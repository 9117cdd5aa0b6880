"""Named calls: what is kept of them, and what of it is not shown."""

import attrs

from gateway.domain.idempotency import KEEP_MS, MAX_ANSWER_BYTES, MAX_KEY_CHARS, IdempotencyRecord
from tests.support.video_records import REPLAY


def test_a_call_that_has_just_come_is_under_way_and_has_no_answer() -> None:
    fresh = IdempotencyRecord(5, "order-1", "ab", "req_0", 1, "me")
    assert (fresh.state, fresh.status, fresh.media_type, fresh.body) == ("running", 0, "", b"")


def test_an_answer_is_not_shown() -> None:
    assert "hush" not in repr(attrs.evolve(REPLAY, body=b"hush"))


def test_the_bounds_are_those_of_the_public_api() -> None:
    """API.md, 7: a name of 255 characters at most, an answer that is given again for 24 hours."""
    assert MAX_KEY_CHARS == 255
    assert KEEP_MS == 24 * 60 * 60 * 1000
    assert 1_000_000 < MAX_ANSWER_BYTES < 16_000_000
