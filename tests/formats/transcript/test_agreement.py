"""How far two answers agree, whatever format they are in."""

import json
import sys
import unicodedata
from collections.abc import Callable
from itertools import groupby
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.price import ONE_PPM
from gateway.formats.transcript.agreement import Agreement, Part, compare_answers
from gateway.formats.transcript.answers import ShownAnswer, ShownAnswers
from gateway.formats.transcript.messages import ToolCall

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
ALL: tuple[Part, ...] = ("text", "tools", "finish")

MARKS = [
    one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(unicodedata.normalize("NFKD", one)[0])
]
"""What joins a run of combining marks."""
MAX_RUN = 64

calls = st.lists(st.builds(ToolCall, st.sampled_from(["find", "read"]), st.sampled_from(['{"a": 1}', "{}", "{", ""])))
answers = st.builds(ShownAnswer, st.text(max_size=80), st.just(""), calls, st.sampled_from(["stop", "length", ""]))
shown = st.builds(ShownAnswers, st.lists(answers, min_size=1, max_size=3))


def answer(text: str, *tools: tuple[str, str], finish: str = "stop") -> ShownAnswers:
    return ShownAnswers([ShownAnswer(text, "", [ToolCall(*tool) for tool in tools], finish)])


def compare(one: ShownAnswers, other: ShownAnswers) -> Agreement:
    agreement = compare_answers(one, other)
    assert agreement is not None
    return agreement


@given(shown, shown)
def test_both_sides_count_alike(one: ShownAnswers, other: ShownAnswers) -> None:
    assert compare(one, other) == compare(other, one)


@given(shown, shown)
def test_a_share_is_a_share_and_whole_for_what_is_equal(one: ShownAnswers, other: ShownAnswers) -> None:
    agreement = compare(one, other)
    assert 0 <= agreement.words_ppm <= ONE_PPM
    if {"text", "tools"} <= set(agreement.parts):
        assert agreement.words_ppm == ONE_PPM


@given(shown)
def test_an_answer_agrees_with_itself(one: ShownAnswers) -> None:
    assert compare(one, one) == Agreement(ONE_PPM, ("text", "tools", "finish"))


@given(st.lists(st.sampled_from(["alpha", "beta", "gamma"])), st.lists(st.sampled_from(["delta", "kappa"]), min_size=1))
def test_words_of_one_side_alone_lower_the_share(shared: list[str], own: list[str]) -> None:
    text = " ".join(shared)
    agreement = compare(answer(text), answer(f"{text} {' '.join(own)}"))
    assert agreement.words_ppm == 2 * len(shared) * ONE_PPM // (2 * len(shared) + len(own))
    assert "text" not in agreement.parts


@pytest.mark.parametrize(
    ("one", "other", "ppm", "parts"),
    [
        (answer("Hello,  WORLD\n"), answer("hello, world"), ONE_PPM, ALL),
        (answer("world hello"), answer("hello world"), ONE_PPM, ("tools", "finish")),
        (answer("one two", finish="length"), answer("three four"), 0, ("tools",)),
        (answer("今天天气好"), answer("今天天气坏"), 800_000, ("tools", "finish")),
        (answer("", ("find", '{"b": 2, "a": 1}')), answer("", ("find", '{"a":1,"b":2}')), ONE_PPM, ALL),
        (answer("", ("find", '{"a": 1}')), answer("", ("find", '{"a": 2}')), 666_666, ("text", "finish")),
        (answer("", ("find", "{}"), ("read", "{}")), answer("", ("read", "{}"), ("find", "{}")), ONE_PPM, ALL),
        (answer("!"), answer("?"), 0, ("tools", "finish")),
    ],
)  # fmt: skip
def test_what_is_equal_is_named(one: ShownAnswers, other: ShownAnswers, ppm: int, parts: tuple[str, ...]) -> None:
    assert compare(one, other) == Agreement(ppm, parts)  # type: ignore[arg-type]  # the table's words are plain texts


def test_nothing_is_compared_with_no_answer() -> None:
    assert compare_answers(answer("hello"), ShownAnswers()) is None
    assert compare_answers(ShownAnswers(), answer(json.dumps({}))) is None


def count_work(text: str) -> int:
    """Bound the steps of putting the marks of a text in order: the square of the length of each run."""
    decomposed = "".join(unicodedata.normalize("NFKD", one) for one in text)
    runs = groupby(decomposed, key=lambda one: unicodedata.combining(one) != 0)
    return sum(len(list(run)) ** 2 for is_marks, run in runs if is_marks)


@example([("\u0344", 17)])
@given(st.lists(st.tuples(st.sampled_from([*MARKS, "a", "字", " ", "—"]), st.integers(1, 400)), max_size=8))
def test_the_work_for_combining_marks_grows_with_the_length_of_the_text(runs: list[tuple[str, int]]) -> None:
    text = "".join(mark * count for mark, count in runs)
    works: list[int] = []
    normalize = unicodedata.normalize

    def count(form: Form, part: str) -> str:
        works.append(count_work(part))
        return normalize(form, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.formats.transcript.agreement.unicodedata", Counting(count))
        agreement = compare(answer(text), answer(f"{text} "))
    assert works
    decomposed = normalize("NFKD", text)  # some marks become two
    assert sum(works) <= 2 * (2 * MAX_RUN) * len(decomposed)
    assert agreement == Agreement(ONE_PPM, ALL)


class Counting:
    """Stands for the module ``unicodedata``."""

    def __init__(self, normalize: Callable[[Form, str], str]) -> None:
        self.normalize = normalize


def test_no_mark_of_unicode_makes_a_long_run() -> None:
    normalized: list[str] = []

    def note(form: Form, part: str) -> str:
        normalized.append(unicodedata.normalize(form, part))
        return normalized[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.formats.transcript.agreement.unicodedata", Counting(note))
        for mark in MARKS:
            compare(answer(mark * 2 * MAX_RUN), answer(""))
    longest = max(
        len(list(run))
        for text in normalized
        for is_mark, run in groupby(text, key=lambda one: one != "\u034f")
        if is_mark
    )
    assert longest <= MAX_RUN


def test_few_marks_are_composed_with_their_letter() -> None:
    assert compare(answer("e\u0301te\u0301 か\u3099"), answer("été が")) == Agreement(ONE_PPM, ALL)
