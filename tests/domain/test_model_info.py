"""How a listing changes what is known: a model goes after two absences in a row."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.domain.model_info import ABSENCES_TO_DROP, ModelInfo, merge

IDS = st.sets(st.sampled_from("abcde"))


class Listings(RuleBasedStateMachine):
    """Listing after listing, beside a history that remembers every one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, ModelInfo] = {}
        self.history: list[set[str]] = []

    @rule(ids=IDS)
    def list_models(self, ids: set[str]) -> None:
        now = len(self.history)
        before = dict(self.known)
        self.known = merge(self.known, [ModelInfo(name, now, f"owner{now}") for name in sorted(ids)])
        self.history.append(ids)
        for name in before.keys() & self.known.keys():
            assert self.known[name].created_s == before[name].created_s

    @invariant()
    def known_is_what_one_of_the_last_two_listings_named(self) -> None:
        assert self.known.keys() == set[str]().union(*self.history[-ABSENCES_TO_DROP:])

    @invariant()
    def absences_are_counted_since_the_last_listing_that_named_it(self) -> None:
        for name, listed in self.known.items():
            since = next(back for back, ids in enumerate(reversed(self.history)) if name in ids)
            assert listed.absences == since
            assert listed.owned_by == f"owner{len(self.history) - 1 - since}"


TestListings = Listings.TestCase


def test_a_model_goes_after_two_absences_and_not_after_one() -> None:
    model = ModelInfo("m", 5, "x")
    once = merge({"m": model}, [])
    assert once == {"m": ModelInfo("m", 5, "x", absences=1)}
    assert merge(once, []) == {}


def test_a_model_that_returns_in_time_begins_anew() -> None:
    once = merge({"m": ModelInfo("m", 5, "x")}, [])
    back = merge(once, [ModelInfo("m", 9, "y")])
    assert back == {"m": ModelInfo("m", 5, "y", absences=0)}
    assert "m" in merge(back, [])


def test_a_model_that_returns_after_it_went_is_new() -> None:
    gone = merge(merge({"m": ModelInfo("m", 5, "x")}, []), [])
    assert merge(gone, [ModelInfo("m", 9, "x")])["m"].created_s == 9


def test_merging_changes_neither_of_its_arguments() -> None:
    known = {"m": ModelInfo("m", 5, "x")}
    listing = [ModelInfo("n", 6, "x"), ModelInfo("n", 7, "x")]
    assert list(merge(known, listing)) == ["n", "m"]
    assert known == {"m": ModelInfo("m", 5, "x")}
    assert len(listing) == 2
