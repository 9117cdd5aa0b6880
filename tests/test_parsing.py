"""Strict reading of tables: every problem at once, each with its path."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.parsing import POSITIVE, EnvText, ValidationErrors, between, join_path, parse_table
from gateway.wording import did_you_mean
from tests.support.table_rows import table_rows


@attrs.frozen
class Inner:
    size: int = attrs.field(metadata=between(1, 9))
    secret: str = attrs.field(default="", repr=False)


@attrs.frozen
class Outer:
    name: str = ""
    flag: bool = False
    count: int = 0
    ratio: float = attrs.field(default=1.0, metadata=POSITIVE)
    amount: Decimal | None = None
    when: datetime | None = None
    style: Literal["a", "b"] = "a"
    status: Literal[403, 429] | None = None
    tags: tuple[str, ...] = ()
    table: dict[str, str] = attrs.field(factory=dict)
    inner: tuple[Inner, ...] = ()
    hidden: tuple[str, ...] = attrs.field(default=(), repr=False)
    pin: int = attrs.field(default=0, repr=False, metadata=between(0, 9))


def problems(table: Any) -> dict[str, str]:
    with pytest.raises(ValidationErrors) as caught:
        parse_table(table, Outer)
    found = dict(caught.value.problems)
    assert len(found) == len(caught.value.problems)
    return found


def test_an_empty_table_is_the_defaults() -> None:
    assert parse_table({}, Outer) == Outer()


def test_every_kind_of_value_is_read() -> None:
    table = {
        "name": "x",
        "flag": True,
        "count": -3,
        "ratio": 2,
        "amount": 5,
        "when": "2027-01-31T12:00:00+02:00",
        "style": "b",
        "status": 429,
        "tags": ["x", ""],
        "table": {"k": "v"},
        "inner": [{"size": 9}],
    }
    read = parse_table(table, Outer)
    assert (read.ratio, read.amount, read.status) == (2.0, Decimal(5), 429)
    assert read.when == datetime(2027, 1, 31, 10, tzinfo=UTC)
    assert read.inner == (Inner(9),)
    assert type(read.ratio) is float


def test_every_problem_is_reported_at_once_with_its_path() -> None:
    found = problems(
        {
            "nam": 1,
            "flag": "true",
            "count": 1.0,
            "ratio": 0,
            "amount": "5",
            "when": "tomorrow",
            "style": "c",
            "status": 404,
            "tags": ["x", 5, None],
            "table": {"k": 5},
            "inner": [{}, {"size": 10}, {"size": True, "sice": 1}, 7],
        }
    )
    assert set(found) == {
        "nam", "flag", "count", "ratio", "amount", "when", "style", "status", "tags[1]", "tags[2]", "table",
        "inner[0].size", "inner[1].size", "inner[2].size", "inner[2].sice", "inner[3]",
    }  # fmt: skip
    assert found["nam"] == "unknown key; did you mean 'name'?"
    assert "required" in found["inner[0].size"]
    assert "from 1 to 9" in found["inner[1].size"]
    assert found["inner[2].sice"] == "unknown key; did you mean 'size'?"


@table_rows("table", [None, [], "x", 5, True])
def test_what_is_no_table_is_said_to_be_none(table: object) -> None:
    with pytest.raises(ValueError, match="expected a table"):
        parse_table(table, Outer)


@table_rows(
    ("key", "value"),
    [
        ("name", 5), ("name", None), ("name", ["x"]), ("flag", 1), ("flag", "yes"), ("flag", None),
        ("count", True), ("count", "5"), ("count", 5.0), ("ratio", "1"), ("ratio", True), ("ratio", float("nan")),
        ("ratio", float("inf")), ("ratio", -1), ("amount", float("nan")), ("amount", Decimal("Infinity")),
        ("amount", "5"), ("amount", False), ("when", 5), ("when", "2027-13-01"), ("when", True), ("style", 1),
        ("style", None), ("style", ["a"]), ("style", {}), ("status", "403"), ("status", True), ("status", 403.5),
        ("tags", "x"), ("tags", {"0": "x"}), ("tags", None), ("table", []), ("table", {"k": None}), ("inner", {}),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_under_its_key(key: str, value: object) -> None:
    assert set(problems({key: value})) == {key}


def test_null_stands_for_an_optional_value_only() -> None:
    read = parse_table({"amount": None, "when": None, "status": None}, Outer)
    assert (read.amount, read.when, read.status) == (None, None, None)


@table_rows(
    "table",
    [
        {"hidden": "hunter2"},
        {"hidden": ["x", {"k": "hunter2"}]},
        {"pin": "hunter2"},
        {"pin": {"hunter2": "hunter2"}},
        {"inner": [{"size": 1, "secret": ["hunter2"]}]},
        {"inner": [{"size": 1, "secrte": "hunter2"}]},
        {"hiden": "hunter2"},
    ],
)
def test_a_value_that_may_be_secret_is_never_shown(table: dict[str, Any]) -> None:
    assert "hunter2" not in str(problems(table))


def test_a_value_that_is_shown_is_shown_in_part() -> None:
    assert len(problems({"count": "x" * 1000})["count"]) < 150


@table_rows(
    ("key", "text", "value"),
    [
        ("name", "5", "5"),
        ("name", "", ""),
        ("flag", "true", True),
        ("flag", "ON", True),
        ("flag", "0", False),
        ("flag", "no", False),
        ("count", "12", 12),
        ("count", "-12", -12),
        ("ratio", "1.5", 1.5),
        ("ratio", "3", 3.0),
        ("amount", "0.1", Decimal("0.1")),
        ("when", "2027-01-31", datetime(2027, 1, 31, tzinfo=UTC)),
        ("style", "b", "b"),
        ("status", "429", 429),
        ("tags", "a, b,,c ", ("a", "b", "c")),
        ("tags", "", ()),
    ],
)
def test_text_of_the_environment_stands_for_every_kind(key: str, text: str, value: object) -> None:
    assert getattr(parse_table({key: EnvText(text)}, Outer), key) == value


@table_rows(
    ("key", "text"),
    [("flag", "maybe"), ("flag", ""), ("count", "1.5"), ("count", ""), ("count", "1_000"), ("count", "9" * 5000),
     ("count", "\u0663"), ("ratio", "fast"), ("ratio", "nan"), ("ratio", "inf"), ("ratio", "0"), ("ratio", "1e999"),
     ("style", "c"), ("style", ""), ("status", "200"), ("when", "soon"), ("table", "k=v"), ("inner", "x")],
)  # fmt: skip
def test_text_of_the_environment_that_stands_for_nothing_is_refused(key: str, text: str) -> None:
    found = problems({key: EnvText(text)})
    assert all(path.startswith(key) for path in found)


def test_a_time_without_a_zone_is_utc() -> None:
    expected = datetime(2027, 1, 31, tzinfo=UTC)
    values = ["2027-01-31", "2027-01-31T00:00:00", "2027-01-31T00:00:00Z", datetime(2027, 1, 31), expected.date()]  # noqa: DTZ001
    assert [parse_table({"when": value}, Outer).when for value in values] == [expected] * 5


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.text(max_size=5).map(EnvText),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["size", "secret", "x"]), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from([field.name for field in attrs.fields(Outer)]) | st.text("xyz ", max_size=5), JSON)
)
def test_any_table_is_read_or_its_problems_told(table: dict[str, Any]) -> None:
    found: list[tuple[str, str]] = []
    try:
        parse_table(table, Outer)
    except ValidationErrors as error:
        found = error.problems
    assert all(path.split(".")[0].split("[")[0] in table for path, _ in found)
    assert len(set(found)) == len(found)


def test_what_concerns_several_keys_is_told_by_the_class() -> None:
    @attrs.frozen
    class Pair:
        low: int = 0
        high: int = 0

        def find_problems(self) -> list[tuple[str, str]]:
            return [("low", "expected less than high")] if self.low > self.high else []

    assert parse_table({"low": 1, "high": 2}, Pair) == Pair(1, 2)
    with pytest.raises(ValidationErrors) as caught:
        parse_table({"low": 3, "high": 2}, Pair)
    assert caught.value.problems == [("low", "expected less than high")]


@table_rows(
    ("where", "key", "path"), [("", "a", "a"), ("a", "b", "a.b"), ("a", "[0]", "a[0]"), ("a", "[0].b", "a[0].b")]
)
def test_paths_are_joined_as_people_write_them(where: str, key: str, path: str) -> None:
    assert join_path(where, key) == path


def test_a_hint_is_given_where_there_is_a_near_word() -> None:
    assert "'port'" in did_you_mean("prot", ["host", "port"])
    assert did_you_mean("zzz", ["host", "port"]) == ""
