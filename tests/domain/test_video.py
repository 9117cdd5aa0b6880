"""Jobs: where they go and where they do not, how long they are left alone, and what is not shown of them."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain import video
from gateway.domain.upload import Upload
from gateway.domain.video import (
    CANCELLED_ERROR,
    ENDED_STATES,
    TRANSITIONS,
    UNACCEPTED_STATES,
    Reference,
    VideoError,
    VideoJob,
    VideoRequest,
    VideoState,
    compute_wait_s,
    find_failing_wait_s,
    find_poll_after_ms,
    is_video_id,
)
from scripts import draw_states
from tests.support.request_records import ROW
from tests.support.table_rows import table_rows
from tests.support.video_records import JOB

NOW = 1_750_000_000_000
STATES: tuple[VideoState, ...] = tuple(TRANSITIONS)
PAIRS = [(before, after) for before in STATES for after in STATES]
ID = "video_" + "0123456789abcdef" * 2


def job(state: VideoState = "processing", **values: Any) -> VideoJob:
    return VideoJob(ID, ROW, "a cat", state=state, **values)


def find_reached(state: VideoState) -> set[VideoState]:
    """Every state that is ever reached from ``state``."""
    reached: set[VideoState] = set()
    waiting = [state]
    while waiting:
        fresh = [after for after in TRANSITIONS[waiting.pop()] if after not in reached]
        reached.update(fresh)
        waiting += fresh
    return reached


# ---- states


@table_rows("state", [state for state in STATES if state not in ENDED_STATES])
def test_every_job_that_goes_on_can_reach_either_end_and_can_fail_at_once(state: VideoState) -> None:
    assert find_reached(state) >= set(ENDED_STATES)
    assert "failed" in TRANSITIONS[state]
    assert not job(state).ended


def test_nothing_comes_after_an_end_and_everything_but_the_beginning_comes_after_it() -> None:
    assert {state for state in STATES if not TRANSITIONS[state]} == set(ENDED_STATES)
    assert find_reached("created") == set(STATES) - {"created"}
    assert job("completed").ended
    assert job("failed").ended


def test_no_job_goes_back_and_only_the_submit_is_tried_again() -> None:
    order = {state: place for place, state in enumerate(STATES)}
    back = [
        (before, after) for before, afters in TRANSITIONS.items() for after in afters if order[after] <= order[before]
    ]
    assert back == [("submitting", "submitting")]


def test_a_job_is_completed_only_by_a_provider_that_was_asked() -> None:
    assert all("completed" not in TRANSITIONS[state] for state in UNACCEPTED_STATES)
    assert {state for state in STATES if set(UNACCEPTED_STATES) & set(TRANSITIONS[state])} == {"created", "submitting"}


@table_rows(("before", "after"), PAIRS, ids=str)
def test_a_job_moves_where_the_table_leads_and_nowhere_else(before: VideoState, after: VideoState) -> None:
    known = attrs.evolve(JOB, state=before)
    if after not in TRANSITIONS[before]:
        with pytest.raises(ValueError, match=f"{before} does not become {after}"):
            known.move(after, NOW)
        return
    assert known.move(after, NOW, channel="x") == attrs.evolve(known, state=after, updated_ms=NOW, channel="x")


def test_the_drawing_in_the_docstring_is_that_of_the_table() -> None:
    """``scripts/draw_states.py`` draws it."""
    drawing = draw_states.draw(TRANSITIONS)
    text = draw_states.MODULE.read_text()
    assert f"\n\n{drawing}\n\n" in text
    assert draw_states.lay_in(text, drawing) == text
    assert drawing in (video.__doc__ or "")


def test_a_drawing_has_every_way_of_its_table() -> None:
    table = {"new": ("busy", "lost"), "busy": ("busy", "done", "lost"), "done": (), "lost": ()}
    assert draw_states.draw(table).splitlines() == [
        "    new -> busy -> done    lost",
        "            o-^",
        "    o-------o-----------------^",
    ]
    assert draw_states.lay_in('"""X.\n\nold\n\nmore."""\n', "new") == '"""X.\n\nnew\n\nmore."""\n'
    with pytest.raises(ValueError, match="way back"):
        draw_states.draw({"a": ("b",), "b": ("a",)})


# ---- a job on its way


@given(st.integers(0, 99), st.none() | st.integers(-(2**63), 2**63))
def test_progress_never_goes_back_and_is_not_full_before_the_end(known: int, reported: int | None) -> None:
    after = job(progress=known).report_progress(reported, NOW, polls=4)
    assert known <= after.progress < 100
    assert reported is None or after.progress in {known, reported, 99}
    assert (after.state, after.updated_ms, after.polls) == ("processing", NOW, 4)


BUSY: dict[str, Any] = {"owner": "me", "lease_until_ms": NOW + 1, "due_ms": NOW, "progress": 40}


def test_a_completed_job_is_full_and_nobodys_any_more() -> None:
    done = job("fetching", **BUSY).complete(NOW, NOW + 5)
    assert (done.state, done.progress, done.completed_ms, done.expires_ms) == ("completed", 100, NOW, NOW + 5)
    assert (done.owner, done.lease_until_ms, done.due_ms, done.updated_ms) == ("", 0, None, NOW)


def test_a_failed_job_says_why_and_keeps_how_far_it_came() -> None:
    failed = job(**BUSY).fail(VideoError("some_code", "Some words"), NOW)
    assert (failed.state, failed.error_code, failed.error_message) == ("failed", "some_code", "Some words")
    assert (failed.progress, failed.completed_ms, failed.expires_ms) == (40, NOW, None)
    assert (failed.owner, failed.lease_until_ms, failed.due_ms) == ("", 0, None)


@table_rows("state", ENDED_STATES)
def test_what_has_ended_does_not_end_again(state: VideoState) -> None:
    with pytest.raises(ValueError, match=state):
        job(state).fail(CANCELLED_ERROR, NOW)
    with pytest.raises(ValueError, match=state):
        job(state).complete(NOW, NOW)


def test_a_job_that_is_let_go_of_is_in_the_same_state_and_due_then() -> None:
    known = job(**BUSY)
    assert known.release(NOW + 9) == attrs.evolve(known, owner="", lease_until_ms=0, due_ms=NOW + 9)


def test_whose_a_job_is_and_when_it_came_its_receipt_says() -> None:
    known = job()
    assert (known.account_id, known.key_id, known.model) == (ROW.account_id, ROW.key_id, ROW.model)
    assert known.created_ms == ROW.started_ms


def test_what_a_caller_says_and_where_its_files_are_is_not_shown() -> None:
    reported = attrs.evolve(JOB, prompt="hush-1", clue="hush-2", webhook_url="hush-3")
    video_request = VideoRequest("hush-4", reference=Reference(url="hush-5"))
    assert "hush" not in f"{reported}{reported!r}{video_request}{video_request!r}"


@table_rows(
    ("reference", "remote"),
    [
        (Reference(url="https://host/1.png"), True),
        (Reference(url="data:image/png;base64,AAAA"), False),
        (Reference(Upload("f", "f", "image/png", b"", None)), False),  # type: ignore[arg-type]
    ],
    ids=["address", "data", "file"],
)
def test_a_image_is_remote_where_it_has_to_be_fetched(reference: Reference, remote: bool) -> None:
    assert reference.is_remote is remote


@table_rows(
    "text",
    ["", "video_", ID[:-1], f"{ID}0", ID.upper(), f"{ID}\n", f" {ID}", ID.replace("0", "g"), ID.replace("0", "\u0660")],
)
def test_what_is_not_written_like_an_id_is_none(text: str) -> None:
    assert is_video_id(ID)
    assert not is_video_id(text)


# ---- waiting


def test_a_job_that_goes_on_is_left_alone_longer_and_longer() -> None:
    assert [compute_wait_s(polls) for polls in range(6)] == [2, 4, 8, 15, 15, 15]
    assert compute_wait_s(10**9) == 15


def test_a_job_that_is_not_heard_of_is_left_alone_longer_still() -> None:
    assert [find_failing_wait_s(failures) for failures in range(1, 8)] == [2, 4, 8, 16, 32, 60, 60]
    assert find_failing_wait_s(10**9) == 60


@table_rows(
    ("age_s", "reported_s"),
    [(-5, 2), (0, 2), (1.999, 2), (2, 4), (5.999, 4), (6, 8), (13.999, 8), (14, 15), (15, 15), (86_400, 15)],
)
def test_a_caller_is_told_to_wait_as_long_as_the_gateway_does(age_s: float, reported_s: int) -> None:
    assert find_poll_after_ms(round(age_s * 1000)) == reported_s * 1000


def test_a_caller_who_waits_as_it_is_told_waits_2_4_8_and_then_15_seconds() -> None:
    age_ms, waits = 0, []
    for _ in range(6):
        waits.append(find_poll_after_ms(age_ms))
        age_ms += waits[-1]
    assert waits == [2_000, 4_000, 8_000, 15_000, 15_000, 15_000]
