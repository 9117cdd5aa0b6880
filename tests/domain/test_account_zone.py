"""Windows in the time zone of an account follow each other without gap and overlap, whenever the zone changes."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.account_zone import AccountZone, change_zone, is_known_zone, make_known_zone
from gateway.domain.limit_window import parse_window
from gateway.errors import Conflict

BERLIN, KOLKATA, KATHMANDU, LORD_HOWE = "Europe/Berlin", "Asia/Kolkata", "Asia/Kathmandu", "Australia/Lord_Howe"
CHATHAM, AUCKLAND, HAVANA, HONOLULU = "Pacific/Chatham", "Pacific/Auckland", "America/Havana", "Pacific/Honolulu"
NAMES = ("UTC", BERLIN, KOLKATA, KATHMANDU, LORD_HOWE, CHATHAM, AUCKLAND, HAVANA, HONOLULU)
KINDS = ("hour", "5h", "day", "week", "month", "quarter")
HOUR_S, DAY_S = 3_600, 86_400


def at(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def find(zones: AccountZone, kind: str, now_s: float) -> tuple[int, int]:
    return zones.find(parse_window(kind), now_s)


@pytest.mark.parametrize(
    ("name", "day", "hours"),
    [
        (BERLIN, "2027-03-28", 23),
        (BERLIN, "2027-10-31", 25),
        (KATHMANDU, "2027-03-28", 24),
        (LORD_HOWE, "2027-10-03", 23.5),
        (LORD_HOWE, "2027-04-04", 24.5),
        (HAVANA, "2027-11-07", 25),
    ],
)
def test_day_begins_at_midnight_and_is_as_long_as_clocks_say(name: str, day: str, hours: float) -> None:
    start_s = at(f"{day}T00:00", name)
    zones = AccountZone(((0, name),))
    for moment_s in (start_s, start_s + 1, start_s + 12 * HOUR_S, start_s + hours * HOUR_S - 1):
        assert find(zones, "day", moment_s) == (start_s, start_s + hours * HOUR_S)
    local = zones.find_local_day(start_s)
    assert (local.start_s, local.end_s) == (start_s, start_s + hours * HOUR_S)
    assert local.month_start_s == at(f"{day[:7]}-01T00:00", name)


def test_running_window_ends_at_midnight_of_the_new_zone() -> None:
    changed_s = at("2027-06-15T10:00")
    zones = AccountZone(((0, "UTC"), (changed_s, BERLIN)))
    start_s, end_s = at("2027-06-15T00:00"), at("2027-06-16T00:00", BERLIN)
    for moment_s in (start_s, changed_s - 1, changed_s, end_s - 1):
        assert find(zones, "day", moment_s) == (start_s, end_s)
    assert find(zones, "day", end_s) == (end_s, at("2027-06-17T00:00", BERLIN))
    assert find(zones, "month", changed_s) == (at("2027-06-01T00:00"), at("2027-07-01T00:00", BERLIN))
    assert find(zones, "quarter", changed_s) == (at("2027-04-01T00:00"), at("2027-07-01T00:00", BERLIN))
    assert find(zones, "hour", changed_s - HOUR_S) == (changed_s - HOUR_S, changed_s)
    assert find(zones, "hour", changed_s) == (changed_s, changed_s + HOUR_S)
    assert find(zones, "rolling:7d", changed_s) == parse_window("rolling:7d").find(changed_s, ZoneInfo("UTC"))
    assert find(zones, "lifetime", changed_s) == parse_window("lifetime").find(changed_s, ZoneInfo("UTC"))


def test_window_whose_midnight_has_passed_in_the_new_zone_ends_at_the_change() -> None:
    changed_s = at("2027-01-31T20:00")  # it is February in Auckland
    zones = AccountZone(((0, "UTC"), (changed_s, AUCKLAND)))
    assert find(zones, "day", changed_s - 1) == (at("2027-01-31T00:00"), changed_s)
    assert find(zones, "day", changed_s) == (changed_s, at("2027-02-02T00:00", AUCKLAND))
    assert find(zones, "month", changed_s - 1) == (at("2027-01-01T00:00"), changed_s)
    assert find(zones, "month", changed_s) == (changed_s, at("2027-03-01T00:00", AUCKLAND))


def test_window_lasts_longer_if_the_new_zone_is_behind() -> None:
    changed_s = at("2027-06-15T22:00")
    zones = AccountZone(((0, AUCKLAND), (changed_s, HONOLULU)))
    assert find(zones, "day", changed_s) == (at("2027-06-16T00:00", AUCKLAND), at("2027-06-17T00:00", HONOLULU))


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=5),
    gaps_s=st.lists(st.integers(1, 45 * 1_440).map(lambda minutes: minutes * 60), min_size=5, max_size=5),
    kind=st.sampled_from(KINDS),
    offset_s=st.integers(-40 * DAY_S, 200 * DAY_S),
)
def test_windows_follow_each_other(names: list[str], gaps_s: list[int], kind: str, offset_s: int) -> None:
    changed_s, periods = at("2027-03-01T00:00"), [(0, names[0])]
    for name, gap_s in zip(names[1:], gaps_s, strict=False):
        changed_s += gap_s
        if name != periods[-1][1]:
            periods.append((changed_s, name))
    zones = AccountZone(tuple(periods))
    moment_s = at("2027-03-01T00:00") + offset_s
    for _ in range(12):
        start_s, end_s = find(zones, kind, moment_s)
        assert start_s <= moment_s < end_s
        for other_s in (start_s, (start_s + end_s) // 2, end_s - 1):
            assert find(zones, kind, other_s) == (start_s, end_s)
        assert find(zones, kind, end_s)[0] == end_s
        moment_s = end_s


def test_change_takes_effect_after_a_minute_and_keeps_what_ran_before() -> None:
    now_s = at("2027-06-15T10:00:30")
    periods = change_zone((), BERLIN, now_s)
    assert periods == ((0, "UTC"), (at("2027-06-15T10:02"), BERLIN))
    assert change_zone(periods, KOLKATA, now_s + 1) == ((0, "UTC"), (at("2027-06-15T10:02"), KOLKATA))
    assert change_zone(periods, None, now_s + 1) == ((0, "UTC"),)
    kept = ((0, "UTC"), (at("2027-06-15T10:02"), BERLIN), (at("2027-06-15T10:03"), KOLKATA))
    assert change_zone(periods, KOLKATA, now_s + 30.5) == kept  # spending may be counted by Berlin's day already
    assert change_zone(periods, None, now_s + 89) == (*kept[:2], (at("2027-06-15T10:03"), "UTC"))
    assert change_zone(kept, BERLIN, now_s + 31) == kept[:2]
    later_s = now_s + 300 * DAY_S
    assert change_zone(periods, KOLKATA, later_s)[0] == (0, BERLIN)
    assert change_zone((), BERLIN, None) == ((0, BERLIN),)
    assert change_zone((), None, None) == ()


def test_a_zone_that_this_machine_does_not_know_leaves_the_former_one() -> None:
    unknown, known = (1_000, "Mars/Olympus_Mons"), (2_000, KOLKATA)
    for periods, expected in (
        (((0, BERLIN), unknown), ((0, BERLIN),)),
        (((0, BERLIN), unknown, known), ((0, BERLIN), known)),
        (((0, unknown[1]), known), ((0, "UTC"), known)),
        (((0, unknown[1]),), ((0, "UTC"),)),
        (((0, BERLIN), known), ((0, BERLIN), known)),
    ):
        assert make_known_zone(periods).periods == expected


def test_zone_cannot_be_changed_without_end() -> None:
    periods, now_s = change_zone((), BERLIN, None), float(at("2027-06-15T10:00"))
    for name in [KOLKATA, BERLIN] * 9 + [KOLKATA]:
        now_s += 3_600
        periods = change_zone(periods, name, now_s)
    with pytest.raises(Conflict):
        change_zone(periods, BERLIN, now_s + 3_600)
    assert change_zone(periods, BERLIN, now_s + 250 * DAY_S)[0] == (0, KOLKATA)


@pytest.mark.parametrize(
    "name",
    [
        "Berlin",
        "",
        "../../etc/passwd",
        "/etc/localtime",
        "Europe",
        "localtime",
        "right/Europe/Berlin",
        "a\0b",
        "x" * 999,
    ],
)
def test_unknown_zone_is_recognized(name: str) -> None:
    assert not is_known_zone(name)
