"""What every driver of the store of videos promises: one suite, run over each of them."""

import asyncio
from collections.abc import Iterable

import attrs
import pytest
from sqlalchemy import func, select

from gateway.domain.request_log import RequestFilter
from gateway.domain.video import (
    INTERRUPTED_ERROR,
    TRANSITIONS,
    UNACCEPTED_STATES,
    VideoError,
    VideoFilter,
    VideoJob,
    VideoState,
)
from gateway.domain.webhook import WebhookDelivery
from gateway.storage.database import Database
from gateway.storage.schema import usage_hours
from tests.support.ledger_balances import read_ids, read_totals
from tests.support.request_records import ROW
from tests.support.stores import Archive
from tests.support.video_records import JOB, LEASE, NOW, claim, end, make_delivery, make_job, mute

EVERYTHING = VideoFilter(newest_first=False)
STATES: tuple[VideoState, ...] = tuple(TRANSITIONS)
DAY_MS = 24 * 3_600_000


async def fill(archive: Archive, *jobs: VideoJob) -> None:
    for job in jobs:
        await archive.videos.create(job)


def names(jobs: Iterable[VideoJob]) -> list[str]:
    return [job.id.removeprefix("video_") for job in jobs]


async def list_reported(archive: Archive) -> list[WebhookDelivery]:
    return list(await archive.deliveries.list_deliveries(video_id=None, limit=10))


async def test_a_new_store_is_empty(archive: Archive) -> None:
    videos = archive.videos
    assert await videos.find("video_0") is None
    assert await videos.find_by_request("req_0") is None
    assert list(await videos.list_videos(EVERYTHING, 10)) == list(await videos.list_open()) == []
    assert (list(await videos.claim_due(claim())), list(await videos.advance([]))) == ([], [])
    assert await videos.find_next_due() is None
    assert list(await videos.list_contradictions()) == []
    assert await videos.sweep_ended(NOW, 10) == 0


async def test_a_job_is_read_back_as_it_was_written(archive: Archive) -> None:
    bare = VideoJob("video_1", attrs.evolve(ROW, id="req_1", channel=None, first_byte_ms=None), "")
    await fill(archive, JOB, bare)
    assert await archive.videos.find(JOB.id) == await archive.videos.find_by_request("req_0") == JOB
    assert list(await archive.videos.list_videos(EVERYTHING, 10)) == [JOB, bare]
    assert list(await archive.videos.list_open()) == [mute(JOB), bare]


@pytest.mark.parametrize("state", ["completed", "failed", "processing"])
async def test_a_prompt_stays_as_the_job_was_made_with_it_whoever_works_on_the_job_without(
    archive: Archive, state: VideoState
) -> None:
    """Not a word of it is lost on the way to the job's end, and nothing that is recorded later changes it."""
    long = "ein Hund, ça court “日本” \U0001f3ac\n" * 4_000
    job = make_job(0, state="queued", prompt=long)
    await fill(archive, job)
    (mine,) = await archive.videos.claim_due(claim())
    (live,) = await archive.videos.list_open()
    assert mine.prompt == live.prompt == ""
    working = mine.move("processing", NOW)
    assert await archive.videos.advance([(mine, attrs.evolve(working, prompt="another"))])
    if state != "processing":
        done = end(working)[0] if state == "completed" else working.fail(VideoError("timeout", "Too late"), NOW)
        assert await archive.videos.finish(attrs.evolve(done, prompt="a third"), job.receipt, None)
    for found in (
        await archive.videos.find(job.id),
        await archive.videos.find_by_request("req_0"),
        *(await archive.videos.list_videos(EVERYTHING, 10)),
    ):
        assert found is not None
        assert (found.state, found.prompt) == (state, long)


async def test_a_job_in_its_next_condition_is_read_back_whole_too(archive: Archive) -> None:
    """Whatever the two have apart; with what is known of its request."""
    plain = make_job(0)
    await fill(archive, plain)
    assert list(await archive.videos.advance([(plain, JOB)])) == [True]
    assert await archive.videos.find(JOB.id) == attrs.evolve(JOB, prompt=plain.prompt)
    later = attrs.evolve(JOB, receipt=attrs.evolve(ROW, channel="second", tried="up=x:1,second=ok:2"))
    assert list(await archive.videos.advance([(JOB, later)])) == [True]
    assert await archive.videos.find(JOB.id) == attrs.evolve(later, prompt=plain.prompt)


async def test_only_jobs_that_are_as_they_were_go_on_and_each_is_answered_for(archive: Archive) -> None:
    jobs = [make_job(number, owner="me") for number in range(4)]
    moved = make_job("moved", state="fetching", owner="me")
    taken = make_job("taken", owner="other")
    await fill(archive, *jobs, moved, taken)
    ended, row = end(jobs[1])
    await archive.videos.finish(ended, row, None)
    before = [jobs[0], jobs[1], make_job("gone"), make_job("moved", owner="me"), make_job("taken", owner="me"), jobs[3]]
    answers = await archive.videos.advance((job, job.report_progress(50, NOW)) for job in before)
    assert list(answers) == [True, False, False, False, False, True]
    progress = {job.id: job.progress for job in await archive.videos.list_videos(EVERYTHING, 10)}
    assert list(progress.values()) == [50, 100, 0, 50, 0, 0]


async def test_one_batch_may_lead_a_job_through_more_than_one_condition(archive: Archive) -> None:
    queued = make_job(0, state="queued")
    working = queued.move("processing", NOW)
    fetching = working.move("fetching", NOW)
    await fill(archive, queued)
    answers = await archive.videos.advance([(queued, working), (working, fetching), (working, queued)])
    assert list(answers) == [True, True, False]
    assert await archive.videos.find(queued.id) == fetching


async def test_what_a_batch_tells_of_a_call_on_the_way_is_on_record_after_it(archive: Archive) -> None:
    """Even where the last step of it tells nothing new."""
    queued = make_job(0, state="queued")
    reported = attrs.evolve(queued.receipt, tried="up=ok:2")
    working = attrs.evolve(queued.move("processing", NOW), receipt=reported)
    await fill(archive, queued, make_job(1))
    later = [working.report_progress(progress, NOW) for progress in (5, 6)]
    moves = [
        (queued, working),
        (working, later[0]),
        (make_job(1), make_job(1).report_progress(9, NOW)),
        (later[0], later[1]),
    ]
    assert list(await archive.videos.advance(moves)) == [True] * 4
    assert list(await archive.videos.list_videos(EVERYTHING, 9)) == [later[1], make_job(1).report_progress(9, NOW)]


async def test_the_last_of_many_pairs_is_as_good_as_the_first(archive: Archive) -> None:
    job = make_job(0)
    await fill(archive, job)
    gone = [make_job(number) for number in range(1, 1_001)]
    answers = await archive.videos.advance((one, one.report_progress(7, NOW)) for one in [*gone, job])
    assert [number for number, answer in enumerate(answers) if answer] == [1_000]
    assert await archive.videos.find(job.id) == job.report_progress(7, NOW)


async def test_an_end_comes_with_its_row_its_charge_and_what_is_told_of_it(archive: Archive) -> None:
    job, other = make_job(0, owner="me", lease_until_ms=NOW + LEASE), make_job(1)
    await fill(archive, job, other)
    done, row = end(job, cost=2**53 + 1)
    assert await archive.videos.finish(done, row, make_delivery(0))
    assert await archive.videos.find(job.id) == done
    assert await read_ids(archive.requests) == ["req_0"]
    assert await read_totals(archive.ledger) == {(3, 5, 2**53 + 1, 2**53 + 1, 2**53 + 1)}
    assert await list_reported(archive) == [make_delivery(0)]
    assert list(await archive.videos.list_open()) == [mute(other)]


async def test_a_failure_is_charged_nothing_and_nobody_need_be_told(archive: Archive) -> None:
    job = make_job(0)
    await fill(archive, job)
    failed = job.fail(VideoError("timeout", "Too late"), NOW)
    assert await archive.videos.finish(failed, attrs.evolve(job.receipt, cost_nanos=0), None)
    assert await archive.videos.find(job.id) == failed
    assert await read_ids(archive.requests) == ["req_0"]
    assert await read_totals(archive.ledger) == set()
    assert await list_reported(archive) == []


async def test_of_many_ends_of_one_job_the_first_counts_and_the_rest_leave_nothing(archive: Archive) -> None:
    job = make_job(0)
    await fill(archive, job)
    ends = [end(job, cost=cost) for cost in range(1, 6)]
    tries = [archive.videos.finish(*one, make_delivery(number)) for number, one in enumerate(ends)]
    answers = await asyncio.gather(*tries)
    assert sorted(answers) == [False, False, False, False, True]
    won = answers.index(True)
    assert await archive.videos.find(job.id) == ends[won][0]
    assert await read_totals(archive.ledger) == {(3, 5, won + 1, won + 1, won + 1)}
    assert [reported.id for reported in await list_reported(archive)] == [f"evt_{won}"]


@pytest.mark.parametrize("way", ["finish", "drop"])
async def test_a_job_ends_although_its_request_is_on_record_as_refused(
    archive: Archive, database: Database, way: str
) -> None:
    """The answer to its creation was lost, and the client was told that there is no job."""
    job = make_job(0, state="created")
    await fill(archive, job)
    await archive.ledger.post([attrs.evolve(job.receipt, outcome="refused", status=503, cost_nanos=0)])
    row = attrs.evolve(job.receipt, outcome="failed", cost_nanos=0)
    if way == "finish":
        assert await archive.videos.finish(job.fail(INTERRUPTED_ERROR, NOW), row, make_delivery(0))
    else:
        assert await archive.videos.drop(job, row)
    (stored,) = await archive.requests.list_requests(RequestFilter(), 10)
    assert stored.row == row
    assert list(await archive.videos.list_contradictions()) == []
    by_hour = select(func.sum(usage_hours.c.requests)).where(usage_hours.c.span == 1)
    assert await database.read(by_hour) == [(1,)]


async def test_a_job_that_is_gone_does_not_end(archive: Archive) -> None:
    assert not await archive.videos.finish(*end(make_job(0), cost=5), make_delivery(0))
    assert await archive.videos.find("video_0") is None
    assert await read_ids(archive.requests) == []
    assert await list_reported(archive) == []


async def test_a_job_may_be_ended_under_its_owners_hands_who_then_changes_nothing(archive: Archive) -> None:
    await fill(archive, make_job(0))
    (mine,) = await archive.videos.claim_due(claim("me"))
    cancelled = mine.fail(VideoError("cancelled", "By the operator"), NOW)
    assert await archive.videos.finish(cancelled, attrs.evolve(mine.receipt, cost_nanos=0), None)
    assert list(await archive.videos.advance([(mine, mine.report_progress(90, NOW))])) == [False]
    assert not await archive.videos.finish(*end(mine, cost=5), make_delivery(0))
    assert await archive.videos.renew("me", NOW + 9 * LEASE) == 0
    assert await archive.videos.find(mine.id) == attrs.evolve(cancelled, prompt="a cat")
    assert await read_totals(archive.ledger) == set()


@pytest.mark.parametrize("state", STATES)
async def test_only_a_job_that_no_provider_took_is_dropped(archive: Archive, state: VideoState) -> None:
    job = make_job(0, state=state, owner="me")
    await fill(archive, job)
    row = attrs.evolve(job.receipt, cost_nanos=0, status=400)
    unsent = state in UNACCEPTED_STATES
    assert await archive.videos.drop(job, row) == unsent
    assert await archive.videos.find(job.id) == (None if unsent else job)
    assert await read_ids(archive.requests) == (["req_0"] if unsent else [])
    assert not await archive.videos.drop(make_job("gone", state="created"), row)


async def test_what_is_due_is_taken_on_longest_first_until_the_lease_ends(archive: Archive) -> None:
    dues = {"soon": NOW + 1, "now": NOW, "long": NOW - 9, "also": NOW - 9, "ended": None}
    jobs = [make_job(name, due_ms=due_ms) for name, due_ms in dues.items()]
    await fill(archive, *jobs)
    taken = await archive.videos.claim_due(claim())
    assert names(taken) == ["long", "also", "now"]
    mine = [attrs.evolve(jobs[at], owner="me", lease_until_ms=NOW + LEASE) for at in (2, 3, 1)]
    assert list(taken) == [mute(job) for job in mine]
    assert [await archive.videos.find(job.id) for job in taken] == mine
    assert list(await archive.videos.claim_due(claim("other"))) == []
    assert names(await archive.videos.claim_due(claim("other", NOW + 1))) == ["soon"]
    again = await archive.videos.claim_due(claim("other", NOW + LEASE))
    assert names(again) == ["long", "also", "now"]
    assert {job.owner for job in again} == {"other"}
    assert list(await archive.videos.advance([(taken[0], taken[0].report_progress(1, NOW))])) == [False]


async def test_a_claim_is_bounded_as_a_whole_and_for_each_channel(archive: Archive) -> None:
    """A channel with a hundred jobs that are long due does not keep another one's waiting."""
    rush = [make_job(f"a{number}", channel="a", due_ms=NOW - 100 + number) for number in range(4)]
    calm = [make_job(f"b{number}", channel="b", due_ms=NOW - 10 + number) for number in range(3)]
    await fill(archive, *calm, *rush)
    assert names(await archive.videos.claim_due(claim(each=2))) == ["a0", "a1", "b0", "b1"]
    assert names(await archive.videos.claim_due(claim(each=1, most=1))) == ["a2"]
    assert names(await archive.videos.claim_due(claim(each=0))) == []
    assert names(await archive.videos.claim_due(claim(most=0))) == []
    assert names(await archive.videos.claim_due(claim(full_channels=frozenset("a")))) == ["b2"]
    assert names(await archive.videos.claim_due(claim(full_channels=frozenset("ab")))) == []
    assert names(await archive.videos.claim_due(claim())) == ["a3"]


async def test_a_node_claims_its_share_and_counts_what_other_nodes_poll(archive: Archive) -> None:
    """A channel that comes to another node is polled no more than before; what requests submit is not polled."""
    await fill(archive, *(make_job(f"a{number}", channel="a", due_ms=NOW - 9 + number) for number in range(4)))
    await fill(archive, make_job("b", channel="b"), make_job("c", channel="c"))
    await fill(archive, make_job("sent", channel="c", state="submitting", owner="one", lease_until_ms=NOW + 1))
    share = frozenset("ab")
    assert sorted(set(await archive.videos.list_due_channels())) == ["a", "b", "c"]
    assert await archive.videos.find_next_due(frozenset("bx")) == NOW
    assert await archive.videos.find_next_due(frozenset()) is None
    assert names(await archive.videos.claim_due(claim("one", channels=frozenset()))) == []
    assert names(await archive.videos.claim_due(claim("one", channels=share, each=2))) == ["a0", "a1", "b"]
    assert names(await archive.videos.claim_due(claim("two", channels=share, each=2))) == []
    assert names(await archive.videos.claim_due(claim("two", channels=share, each=3))) == ["a2"]
    assert names(await archive.videos.claim_due(claim("two", channels=share, full_channels=frozenset("a")))) == []
    assert names(await archive.videos.claim_due(claim("two", channels=frozenset("c"), each=1))) == ["c"]
    assert names(await archive.videos.claim_due(claim("two", channels=frozenset("c"), now_ms=NOW + 1))) == ["sent"]


async def test_files_to_be_fetched_are_claimed_apart_from_all_others(archive: Archive) -> None:
    await fill(archive, *(make_job(state, state=state) for state in STATES[:5]))
    assert names(await archive.videos.claim_due(claim(fetching=True))) == ["fetching"]
    assert names(await archive.videos.claim_due(claim())) == ["created", "submitting", "queued", "processing"]


async def test_of_many_owners_one_gets_a_job(archive: Archive) -> None:
    await fill(archive, *(make_job(number, channel=f"c{number % 3}") for number in range(9)))
    owners = [f"p{number}" for number in range(4)]
    taken = await asyncio.gather(*(archive.videos.claim_due(claim(owner, most=3, each=2)) for owner in owners))
    assert sorted(names(job for part in taken for job in part)) == [str(number) for number in range(9)]
    assert all({job.owner for job in part} <= {owner} for owner, part in zip(owners, taken, strict=True))


async def test_a_living_owner_keeps_its_jobs_and_only_them(archive: Archive) -> None:
    await fill(archive, make_job(1), make_job(2), make_job(3, owner="other", lease_until_ms=NOW + 1))
    await fill(archive, make_job("free", due_ms=NOW + 9 * LEASE))
    await archive.videos.claim_due(claim("me"))
    assert await archive.videos.renew("me", NOW + 3 * LEASE) == 2
    assert await archive.videos.renew("nobody", NOW + 3 * LEASE) == await archive.videos.renew("", NOW) == 0
    assert names(await archive.videos.claim_due(claim("third", NOW + 3 * LEASE - 1))) == ["3"]
    assert names(await archive.videos.claim_due(claim("third", NOW + 3 * LEASE))) == ["1", "2"]


@pytest.mark.parametrize(
    ("owner", "others", "freed"),
    [("me", False, ["mine"]), ("me", True, ["theirs", "gone"]), ("fresh", True, ["mine", "theirs", "gone"]),
     ("fresh", False, []), ("", False, []), ("", True, ["mine", "theirs", "gone"])],
)  # fmt: skip
async def test_jobs_of_a_process_that_has_ended_are_free_at_once(
    archive: Archive, owner: str, freed: list[str], *, others: bool
) -> None:
    owners = {"mine": "me", "theirs": "other", "gone": "third"}
    jobs = [make_job(name, owner=whose, lease_until_ms=NOW + LEASE) for name, whose in owners.items()]
    await fill(archive, *jobs, make_job("free", due_ms=None))
    assert await archive.videos.release(owner, others_only=others) == len(freed)
    free = [attrs.evolve(job, owner="", lease_until_ms=0) for job in jobs]
    wanted = [mute(new if names([old])[0] in freed else old) for old, new in zip(jobs, free, strict=True)]
    assert list(await archive.videos.list_open())[:3] == wanted
    assert names(await archive.videos.claim_due(claim("next"))) == freed


async def test_lists_go_through_the_jobs_in_the_order_in_which_they_were_asked_for(archive: Archive) -> None:
    """Whatever was changed last; and page by page."""
    jobs = [make_job(number, account=3 + number % 2) for number in range(6)]
    await fill(archive, *jobs)
    await archive.videos.advance([(jobs[0], jobs[0].report_progress(5, NOW))])
    await archive.videos.finish(*end(jobs[3]), None)
    for job in (jobs[2], jobs[4]):
        await archive.videos.finish(job.fail(VideoError("timeout", "Too late"), NOW), job.receipt, None)
    wanted = {
        VideoFilter(): "543210",
        VideoFilter(newest_first=False): "012345",
        VideoFilter(account_id=3): "420",
        VideoFilter(account_id=3, newest_first=False): "024",
        VideoFilter(account_id=9): "",
        VideoFilter(live=True): "510",
        VideoFilter(account_id=4, live=True): "51",
        VideoFilter(state="completed"): "3",
        VideoFilter(state="completed", live=True): "",
        VideoFilter(state="completed", account_id=3): "",
        VideoFilter(state="failed"): "42",
        VideoFilter(state="failed", newest_first=False, after="video_2"): "4",
        VideoFilter(state="failed", live=True): "",
        VideoFilter(state="processing"): "510",
        VideoFilter(state="processing", account_id=4, after="video_3"): "1",
        VideoFilter(state="processing", newest_first=False, live=True): "015",
        VideoFilter(state="queued"): "",
        VideoFilter(after="video_3"): "210",
        VideoFilter(after="video_3", live=True, newest_first=False): "5",
        VideoFilter(account_id=3, after="video_4"): "20",
        VideoFilter(account_id=3, after="video_2", newest_first=False): "4",
        VideoFilter(account_id=3, after="video_3"): "",
        VideoFilter(after="video_9"): "",
        VideoFilter(after="video_9", newest_first=False): "",
    }
    for wish, expected in wanted.items():
        for limit in (0, 2, 10):
            assert names(await archive.videos.list_videos(wish, limit)) == list(expected)[:limit], wish


async def test_when_the_next_job_is_due_is_known_whoever_works_on_it(archive: Archive) -> None:
    late, soon = make_job(1, due_ms=NOW + 500), make_job(2, due_ms=NOW - 3)
    await fill(archive, late, soon, make_job(3, state="completed", due_ms=None))
    assert await archive.videos.find_next_due() == NOW - 3
    (mine,) = await archive.videos.claim_due(claim())
    assert await archive.videos.find_next_due() == NOW - 3
    await archive.videos.advance([(mine, mine.release(NOW + 900))])
    assert await archive.videos.find_next_due() == NOW + 500
    for job in (late, soon):
        await archive.videos.finish(*end(job), None)
    assert await archive.videos.find_next_due() is None


async def test_a_job_that_ended_otherwise_than_its_call_is_told_of(archive: Archive) -> None:
    jobs = [make_job(name) for name in ("good", "dear", "free", "charged", "no row", "no row failed", "live")]
    failed = [job.fail(VideoError("timeout", "Too late"), NOW) for job in jobs]
    await fill(archive, *jobs[:4], end(jobs[4])[0], failed[5], jobs[6])
    done, row = end(jobs[0], cost=7)
    await archive.videos.finish(done, row, None)
    await archive.videos.finish(end(jobs[1], cost=8)[0], attrs.evolve(jobs[1].receipt, cost_nanos=9), None)
    await archive.videos.finish(attrs.evolve(failed[2], cost_nanos=5), end(jobs[2])[1], None)
    await archive.videos.finish(attrs.evolve(failed[3], cost_nanos=6), end(jobs[3], cost=6)[1], None)
    wrong = [f"video_{name}" for name in ("dear", "charged", "no row", "no row failed")]
    assert list(await archive.videos.list_contradictions()) == wrong


@pytest.mark.parametrize("state", STATES)
async def test_only_a_job_that_has_ended_is_forgotten_and_its_books_stay(archive: Archive, state: VideoState) -> None:
    job = make_job(0, state=state)
    await fill(archive, job)
    ended = state in {"completed", "failed"}
    assert await archive.videos.remove(job) == ended
    assert await archive.videos.remove(make_job("gone", state="completed")) is False
    assert await archive.videos.find(job.id) == (None if ended else job)
    if not ended:
        done, row = end(attrs.evolve(job, state="processing"), cost=4)
        await archive.videos.finish(done, row, make_delivery(0))
        assert await archive.videos.remove(done)
        assert await archive.videos.find_by_request("req_0") is None
        assert await read_ids(archive.requests) == ["req_0"]
        assert await list_reported(archive) == [make_delivery(0)]
        assert not await archive.videos.remove(done)


async def test_jobs_that_have_long_been_over_are_forgotten_a_few_at_a_time(archive: Archive) -> None:
    """A video is over when it expires, a failure at once; what goes on stays, however old it is."""
    old, late = NOW - 30 * DAY_MS, NOW - 20 * DAY_MS
    times: dict[str, tuple[VideoState, int | None, int | None]] = {
        "second": ("completed", old - 9, old - 2),
        "first": ("failed", old - 3, None),
        "third": ("failed", old - 1, None),
        "not yet": ("failed", old, None),
        "shown still": ("completed", old - 9, late),
        "live": ("processing", old - 9, old - 9),
        "untold": ("failed", None, None),
    }
    jobs = {
        name: make_job(name, state=state, completed_ms=completed_ms, expires_ms=expires_ms)
        for name, (state, completed_ms, expires_ms) in times.items()
    }
    await fill(archive, *jobs.values())
    swept = []
    for _ in range(3):
        swept.append(await archive.videos.sweep_ended(old, 2))
        swept.append(len(await archive.videos.list_videos(EVERYTHING, 10)))
        assert await archive.videos.find("video_first") is None
        assert await archive.videos.find("video_second") is None
    assert swept == [2, 5, 1, 4, 0, 4]
    left = list(await archive.videos.list_videos(EVERYTHING, 10))
    assert left == [jobs[name] for name in ("not yet", "shown still", "live", "untold")]
    assert await archive.videos.sweep_ended(NOW, 0) == 0
    assert await archive.videos.sweep_ended(NOW, 10) == 2
    assert names(await archive.videos.list_videos(EVERYTHING, 10)) == ["live", "untold"]


async def test_what_a_forgotten_job_cost_and_what_was_told_of_it_stays(archive: Archive) -> None:
    job = make_job(0)
    await fill(archive, job)
    done, row = end(job, cost=4)
    await archive.videos.finish(done, row, make_delivery(0))
    assert await archive.videos.sweep_ended(NOW + 1, 10) == 0
    assert await archive.videos.sweep_ended(NOW + 2, 10) == 1
    assert await archive.videos.find_by_request("req_0") is None
    assert await read_ids(archive.requests) == ["req_0"]
    assert await read_totals(archive.ledger) == {(3, 5, 4, 4, 4)}
    assert await list_reported(archive) == [make_delivery(0)]
    assert list(await archive.videos.list_contradictions()) == []
