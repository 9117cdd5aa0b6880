"""What checking a prompt costs in CPU, with few words listed and with many: printed, and compared with each other only.

``make test ARGS="tests/bench -n0 -s"`` shows it.
"""

import random
import statistics
import time

import pytest

from gateway.flow.safety import WordList, read_words

pytestmark = pytest.mark.slow

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
    for count in (10, 100_000):
        text = "\n".join(make_words(count, alphabet, 8, 14))
        began = time.process_time()
        lists.append(read_words(text))
        print(f"\n{kind}: a list of {count} words is read in {(time.process_time() - began) * 1e3:.0f} ms", end="")
    few, many = measure(lists, prompt)
    print(f"\n{kind}: {len(prompt)} characters against 10 words: {few:.0f} us, against 100,000: {many:.0f} us")
    assert len(lists[1]) > 99_000
    assert many < 20 * few
