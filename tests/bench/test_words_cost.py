"""What checking a prompt costs in CPU, with few words listed and with many: printed, and compared with each other only.

``make bench-parts`` shows it.
"""

import random
import statistics
import time

import pytest

from gateway.media.word_filter import WordList, parse_words

pytestmark = pytest.mark.cost

ROUNDS = 15
CHARACTERS = 32_000
DICE = random.Random(5)  # noqa: S311 - the same words at every run
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HAN = "".join(chr(code) for code in range(0x4E00, 0x5600))


def make_words(count: int, alphabet: str, low: int, high: int) -> list[str]:
    return ["".join(DICE.choices(alphabet, k=DICE.randint(low, high))) for _ in range(count)]


def make_prompt(alphabet: str, low: int, high: int) -> str:
    return " ".join(make_words(CHARACTERS // low, alphabet, low, high))[:CHARACTERS]


def measure(lists: list[WordList], prompt: str) -> list[float]:
    """Microseconds of a search in each list, by turns; the median of the rounds."""
    costs: list[list[float]] = [[] for _ in lists]
    for _ in range(ROUNDS):
        for words, seen in zip(lists, costs, strict=True):
            began = time.process_time()
            assert words.find(prompt) is None
            seen.append((time.process_time() - began) * 1e6)
    return [statistics.median(seen) for seen in costs]


@pytest.mark.parametrize(
    ("kind", "alphabet", "prompt"),
    [
        ("English", LETTERS, make_prompt(LETTERS, 3, 7)),
        ("accented", LETTERS, "é " + make_prompt(LETTERS, 3, 7)[2:]),
        ("Chinese", HAN, make_prompt(HAN, 20, 40)),
    ],
)
def test_ten_thousand_times_the_words_do_not_make_a_search_ten_thousand_times_dearer(
    kind: str, alphabet: str, prompt: str
) -> None:
    lists = []
    for count in (3, 30_000):
        text = "\n".join(make_words(count, alphabet, 8, 14))
        began = time.process_time()
        lists.append(parse_words(text))
        print(f"\n{kind}: a list of {count} words is read in {(time.process_time() - began) * 1e3:.0f} ms", end="")
    few, many = measure(lists, prompt)
    print(f"\n{kind}: {len(prompt)} characters against 3 words: {few:.0f} us, against 30,000: {many:.0f} us")
    assert len(lists[1]) > 29_000
    assert many < 20 * few


@pytest.mark.parametrize(
    "marks",
    [
        "\u0300" * (CHARACTERS // 2) + "\u0316" * (CHARACTERS // 2),
        "\u0300\u0316" * (CHARACTERS // 2),
        "\u0f73" * CHARACTERS,
        "\uff9e\u0316" * (CHARACTERS // 2),
        "\u094d\u093c" * (CHARACTERS // 2),
        ("\u20dd" + "\u094d" * 29 + "\u1aff" + "\u093c" * 29) * (CHARACTERS // 60),
    ],
    ids=["two heaps", "mixed", "pairs", "half-width", "vowels", "in parts"],
)
def test_a_heap_of_marks_costs_what_letters_cost(marks: str) -> None:
    """It cost three hundred times as much where ``normalize`` sorted all of them."""
    words = [parse_words("badword")]
    (few,) = measure(words, "\u00e9" * CHARACTERS)
    (many,) = measure(words, "a" + marks)
    print(f"\n{CHARACTERS} letters: {few:.0f} us, marks: {many:.0f} us")
    assert many < 20 * few


def test_words_in_one_another_cost_what_others_cost() -> None:
    nested = parse_words("\n".join("a" * length for length in range(1, 2_000)))
    others = parse_words("\n".join(make_words(2_000, LETTERS, 8, 14)))
    few, many = measure([others, nested], "a" * (CHARACTERS - 1) + "b")
    print(f"\n{CHARACTERS} characters against 2,000 words: {few:.0f} us, against 2,000 in one another: {many:.0f} us")
    assert many < 200 * few
