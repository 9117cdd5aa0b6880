"""Webhooks: what signs them, as others verify it, and when they are attempted again."""

import base64
import hmac
import time
from hashlib import sha256
from itertools import pairwise

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from gateway.domain import webhook
from tests.support.table_rows import table_rows
from tests.support.video_records import DELIVERY, NOW, make_delivery

MASTER = bytes(range(32))
SECRET = webhook.derive_secret(MASTER, 7)
THEIRS = Webhook(webhook.build_secret(SECRET))
"""The library of Standard Webhooks, with what a caller is given."""


def headers(body: bytes, age_s: int = 0) -> dict[str, str]:
    """As an attempt had them that was made so long ago; the clock that their library looks at cannot be turned."""
    name, at_s = "evt_1", int(time.time()) - age_s
    return {
        "webhook-id": name,
        "webhook-timestamp": str(at_s),
        "webhook-signature": webhook.sign_delivery(SECRET, name, at_s, body),
    }


# ---- signatures


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=9) | st.integers(-(2**53), 2**53), max_size=4))
def test_what_is_signed_their_library_verifies(answer: dict[str, object]) -> None:
    body = orjson.dumps(answer)
    assert THEIRS.verify(body, headers(body)) == answer


def test_a_signature_is_what_the_specification_says() -> None:
    mac = hmac.new(SECRET, b'evt_1.1700000000.{"a": 1}', sha256).digest()
    assert webhook.sign_delivery(SECRET, "evt_1", 1_700_000_000, b'{"a": 1}') == f"v1,{base64.b64encode(mac).decode()}"


def test_what_was_changed_on_the_way_is_not_verified() -> None:
    body, good = b'{"id": 1}', headers(b'{"id": 1}')
    at_s = int(good["webhook-timestamp"])
    assert THEIRS.verify(body, good) == {"id": 1}
    spoilt = [
        (b'{"id": 2}', good),
        (body, good | {"webhook-id": "evt_2"}),
        (body, good | {"webhook-timestamp": str(at_s - 1)}),
        (body, headers(body, age_s=400)),
        (
            body,
            good | {"webhook-signature": webhook.sign_delivery(webhook.derive_secret(MASTER, 8), "evt_1", at_s, body)},
        ),
    ]
    for reported, theirs in spoilt:
        with pytest.raises(WebhookVerificationError):
            THEIRS.verify(reported, theirs)


def test_every_key_has_a_secret_of_its_own_that_stays_the_same() -> None:
    secrets = {webhook.derive_secret(master, key_id) for master in (MASTER, b"other") for key_id in range(50)}
    assert len(secrets) == 100
    assert {len(secret) for secret in secrets} == {32}
    assert webhook.derive_secret(MASTER, 7) == SECRET
    written = webhook.build_secret(SECRET)
    assert written.startswith(webhook.SECRET_PREFIX)
    assert base64.b64decode(written.removeprefix(webhook.SECRET_PREFIX), validate=True) == SECRET


# ---- attempts


def fail_for_ever(delivery: webhook.WebhookDelivery, took_ms: int = 0) -> list[webhook.WebhookDelivery]:
    """After every attempt, made when it was due; the last is over."""
    seen = [delivery]
    while seen[-1].due_ms is not None:
        seen.append(seen[-1].record_attempt(500, "no", seen[-1].due_ms + took_ms))
    return seen[1:]


def test_who_is_never_well_is_told_twelve_times_in_a_day_and_no_more() -> None:
    tries = fail_for_ever(make_delivery(1))
    waits = [(after.due_ms or 0) - (before.due_ms or 0) for before, after in pairwise([make_delivery(1), *tries[:-1]])]
    assert waits == [seconds * 1000 for seconds in webhook.RETRY_AFTER_S]
    assert [one.attempts for one in tries] == list(range(1, 13))
    assert [one.status for one in tries] == ["pending"] * 11 + ["failed"]
    assert 20 * 3_600_000 < (tries[-1].ended_ms or 0) - NOW <= webhook.GIVE_UP_AFTER_S * 1000
    assert all(one.created_ms == NOW for one in tries)


def test_the_waits_grow_and_come_to_a_day() -> None:
    assert list(webhook.RETRY_AFTER_S) == sorted(set(webhook.RETRY_AFTER_S))
    assert webhook.GIVE_UP_AFTER_S * 0.85 < sum(webhook.RETRY_AFTER_S) < webhook.GIVE_UP_AFTER_S


@given(st.integers(0, 7_200_000))
def test_nobody_is_told_after_a_day_however_slow_every_attempt_is(took_ms: int) -> None:
    tries = fail_for_ever(make_delivery(1), took_ms)
    assert all((one.due_ms or NOW) <= NOW + webhook.GIVE_UP_AFTER_S * 1000 for one in tries)
    assert tries[-1].status == "failed"
    assert len(tries) <= 12


@table_rows("answer", [200, 201, 204, 299])
@table_rows("attempts", [0, 5, 40])
def test_what_was_taken_is_over_whenever_that_was(answer: int, attempts: int) -> None:
    late = NOW + 2 * webhook.GIVE_UP_AFTER_S * 1000
    done = make_delivery(1, attempts=attempts, answer=500, error="no", owner="me", lease_until_ms=5).record_attempt(
        answer, "an error that is none", late
    )
    assert (done.status, done.answer, done.error, done.attempts) == ("delivered", answer, None, attempts + 1)
    assert (done.due_ms, done.ended_ms, done.owner, done.lease_until_ms) == (None, late, "", 0)


@table_rows("answer", [None, 100, 199, 300, 302, 304, 400, 404, 409, 411, 429, 500, 599])
def test_every_other_answer_and_none_is_tried_again(answer: int | None) -> None:
    again = make_delivery(1, owner="me", lease_until_ms=5).record_attempt(answer, "why", NOW + 10)
    assert (again.status, again.answer, again.error) == ("pending", answer, "why")
    assert (again.due_ms, again.ended_ms, again.owner, again.lease_until_ms) == (NOW + 5_010, None, "", 0)


def test_who_is_gone_is_told_nothing_more() -> None:
    """The specification: 410 asks for no more deliveries."""
    over = make_delivery(1, owner="me", lease_until_ms=5).record_attempt(410, "gone", NOW + 10)
    assert (over.status, over.answer, over.error, over.attempts) == ("failed", 410, "gone", 1)
    assert (over.due_ms, over.ended_ms, over.owner, over.lease_until_ms) == (None, NOW + 10, "", 0)


def test_what_can_never_be_told_is_not_tried_again() -> None:
    over = make_delivery(1, owner="me", lease_until_ms=5).record_attempt(None, "refused", NOW + 10, hopeless=True)
    assert (over.status, over.answer, over.error, over.due_ms, over.owner) == ("failed", None, "refused", None, "")
    assert make_delivery(1).record_attempt(200, None, NOW, hopeless=True).status == "delivered"


def test_an_attempt_after_a_long_stop_is_the_last() -> None:
    late = make_delivery(1).record_attempt(503, "no", NOW + webhook.GIVE_UP_AFTER_S * 1000 - 4_999)
    assert (late.status, late.due_ms, late.attempts) == ("failed", None, 1)
    in_time = make_delivery(1).record_attempt(503, "no", NOW + webhook.GIVE_UP_AFTER_S * 1000 - 5_000)
    assert (in_time.status, in_time.due_ms) == ("pending", NOW + webhook.GIVE_UP_AFTER_S * 1000)


def test_where_it_goes_and_what_it_says_is_not_shown() -> None:
    reported = attrs.evolve(DELIVERY, url="https://host/hush-1", body=b"hush-2")
    assert "hush" not in f"{reported}{reported!r}"
