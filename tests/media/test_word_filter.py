"""The operator's list of words: what is found in a prompt, what is not, and what the caller is told."""

import subprocess
import sys
import unicodedata
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.loader import MAX_WORDS_MB, read_words_text
from gateway.errors import InvalidRequest, SensitiveWords
from gateway.media.word_filter import MAX_CHECKED_CHARS, check_body, check_prompt, parse_words
from tests.support.table_rows import table_rows

LATIN = st.text("abcdefgh", min_size=1, max_size=6)
UNSEEN = "\0\x07\x7f\x80\u00ad\u200b\u200c\u200d\u2060\ue000\ufeff\ufe0f\ufff0\ufffb\U0001bca0\U0001d173\U00100000"
STROKES = "\u0301\u0336\u0338\u0345\u20dd\u0489\u20e0\ua670\u093e\U0001d165"
IMAGE = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(200_000)).decode()


def find(listed: str, text: str) -> str | None:
    return parse_words(listed).find(text)


@table_rows(
    ("listed", "prompt"),
    [
        ("bomb", "a bomb"),
        ("bomb", "BOMB!"),
        ("BoMb", "bomb"),
        ("bomb", "(bomb)"),
        ("bomb", "bomb_maker"),
        ("bomb", "a-bomb"),
        ("bomb", "\uff42\uff4f\uff4d\uff42"),  # full width
        ("bomb", "\U0001d41b\U0001d428\U0001d426\U0001d41b"),  # mathematical
        ("bomb", "b\u200bo\u200cm\u200db"),
        ("bomb", "bo\u00admb"),
        ("bomb", "\ufeffbomb\ufe0f"),
        ("bomb", "b\u0336o\u0336m\u0336b\u0336"),  # struck through
        ("bomb", "b\u0301o\u0301m\u0301b\u0301"),  # marks that make letters of their own
        ("bomb", "b\u00f3mb"),
        ("bo\u00admb", "bomb"),
        ("bomb", "bo\0m\x7fb"),
        ("bomb", "bo\x80m\ufff9b"),
        ("bomb", "bomb\u00b2"),  # what folds to a digit or a letter, but is none
        ("bomb", "\u2460bomb\u2122"),
        ("bomb", "\u24d0bomb\u24e9"),
        ("bomb", "bomb\u2776"),
        ("bomb", "\u24b7\u24c4\u24c2\u24b7\u00b2"),
        ("bomb2", "bomb\u00b2"),
        ("m\u00b2", "20 m2"),
        ("bomb", "bo\u0941mb"),  # a vowel of another script
        ("bomb", "\u093ebomb"),
        ("pipe bomb", "pipe\u200bbomb"),
        ("pipe bomb", "pi\u00adpe bo\u00admb"),
        ("pipe bomb", "pipe\0bomb"),
        ("pipe bomb", "pip\u00e9\u200bbomb\u00b2"),
        ("pipe bomb", "pipe\x1fbomb"),  # these are white space
        ("pipe bomb", "pipe\x0b\x85\u2028bomb"),
        ("pipe bomb", "a pipe \t\n bomb"),
        ("pipe  bomb", "pipe\u00a0\u3000bomb"),
        ("stra\u00dfe", "STRASSE"),
        ("caf\u00e9", "CAFE\u0301"),
        ("cafe\u0301", "caf\u00e9"),
        ("\ufb01re", "fire"),  # a ligature
        ("\u0442\u0440\u0443\u043f", "\u0422\u0420\u0423\u041f."),
        ("4chan", "see 4chan"),
        ("***", "a***b"),
        ("c++", "c++20"),
        ("bomb", "\u8bf7\u753bbomb\u56fe"),  # Latin amid Han
        ("\u70b8\u5f39", "\u8bf7\u753b\u4e00\u4e2a\u70b8\u5f39\u56fe"),
        ("\u7206\u5f3e", "\u5927\u7206\u5f3e\u3060"),
        ("\u30d0\u30af\u30c0\u30f3", "\u5927\uff8a\uff9e\uff78\uff80\uff9e\uff9d\u3060"),  # half-width kana
        ("\u0e23\u0e30\u0e40\u0e1a\u0e34\u0e14", "\u0e27\u0e32\u0e14\u0e23\u0e30\u0e40\u0e1a\u0e34\u0e14\u0e43\u0e2b"),
        ("\u70b8\u5f39 bomb", "\u70b8\u5f39  Bomb"),
        ("\ud3ed\ud0c4", "\ud3ed\ud0c4\uc744"),  # a Korean noun with its particle
    ],
)
def test_a_word_is_found_however_it_is_dressed(listed: str, prompt: str) -> None:
    assert find(listed, prompt) == listed
    assert find(f"other\n{listed}\nmore", f"before, {prompt} and after") == listed


@table_rows(
    ("listed", "prompt"),
    [
        ("cunt", "Scunthorpe"),
        ("ass", "assassin class"),
        ("bomb", "bombastic"),
        ("bomb", "abomb"),
        ("bomb", "bomb2"),
        ("bomb", "b omb"),
        ("pipe bomb", "pipebomb"),
        ("pipe bomb", "pipe, bomb"),
        ("pipe bomb", "pipe\u200b, bomb"),
        ("rapist", "the\u00adrapist"),  # a word may be parted where a line may end
        ("bomb", "bomb\u2163"),
        ("4chan", "14chan"),
        ("\u0442\u0440\u0443\u043f", "\u0442\u0440\u0443\u043f\u043f\u0430"),
        ("f\u00fcr", "fur"),  # listed with marks: found with them only
        ("l\u1ed3n", "con l\u1ee3n"),
        ("\u30d0\u30ab", "\u30cf\u30ab"),  # a voiced kana is another one
        ("\u0915\u092e", "\u0915\u092e\u0940"),  # a vowel sign goes on with the word
        ("\u0915\u093f", "\u0915\u0941"),
        ("\ud3ed\ud0c4", "\ud575\ud3ed\ud0c4"),
        ("\uac00", "\uac01"),  # a syllable is whole
        ("bomb", ""),
        ("# bomb", "# bomb"),
    ],
)
def test_what_is_another_word_is_left_alone(listed: str, prompt: str) -> None:
    assert find(listed, prompt) is None


def test_a_word_inside_another_does_not_hide_one_that_stands_alone() -> None:
    assert find("ass\nclass act", "classy class act") == "class act"
    assert find("a\nab\nabc", "xabc ab") == "ab"
    assert find("bomb", "bombs and a bomb") == "bomb"


def test_a_long_list_of_words_that_are_in_one_another_is_looked_through_once() -> None:
    """Not at each place for each of them: that took a minute."""
    words = parse_words("\n".join("a" * length for length in range(1, 2_000)))
    assert words.find("a" * 31_999 + "b") is None
    assert words.find("a" * 16_000 + "b " + "a" * 1_999) is not None


def test_no_mark_hides_a_word() -> None:
    words = parse_words("badword")
    marks = [mark for mark in map(chr, range(0x110000)) if unicodedata.category(mark) in {"Mn", "Mc", "Me"}]
    assert [ascii(mark) for mark in marks if words.find(f"{mark}bad{mark}word{mark}") is None] == []


@table_rows("heap", ["\u0300\u0316", "\u0f73", "\uff9e\u0316", "\u094d\u093c", "\u20dd\u093c\u094d"])
def test_a_heap_of_marks_hides_no_word(heap: str) -> None:
    words = parse_words("b\u00e1d\nword")
    assert words.find(f"ba\u0301{heap * 1_000}d") == "b\u00e1d"
    assert words.find(f"x{heap * 1_000} \u0915{heap * 1_000}, word") == "word"
    assert words.find(f"bad{heap * 1_000}words") is None


def test_comments_and_blank_lines_are_no_words() -> None:
    words = parse_words("\ufeff# words\r\n\r\n  one \r\n\u200b\n#two\nONE\nthree # four\n")
    assert len(words) == 2
    assert words.find("One.") == "one"
    assert words.find("two") is None
    assert words.find("three") is None
    assert words.find("three # four") == "three # four"


@table_rows("listed", ["", "\n\n", "# nothing\n", "\u200b\n\u0301\n"])
def test_an_empty_list_finds_nothing(listed: str) -> None:
    words = parse_words(listed)
    assert len(words) == 0
    assert words.find("anything at all") is None


def test_the_caller_is_told_that_there_is_a_word_and_not_which() -> None:
    words = parse_words("bomb")
    with pytest.raises(SensitiveWords) as caught:
        check_prompt(words, "a Bomb")
    assert caught.value.message == "The prompt contains words that this gateway does not allow"
    assert (caught.value.status, caught.value.public_code) == (400, "sensitive_words_detected")
    assert caught.value.param == "prompt"
    assert caught.value.should_retry is False
    with pytest.raises(SensitiveWords) as caught:
        check_prompt(words, "bomb", "input")
    assert caught.value.param == "input"


def test_where_no_list_is_configured_and_where_no_word_is_found_nothing_is_said() -> None:
    check_prompt(None, "a bomb")
    check_prompt(parse_words(""), "a bomb")
    check_prompt(parse_words("bomb"), "a balm")


@table_rows(
    ("body", "param"),
    [
        ({"prompt": "a bomb"}, "prompt"),
        ({"prompt": "a balm", "prompt_2": "a bomb"}, "prompt_2"),
        ({"prompt": "a balm", "n": 1, "extra": {"deep": [None, 2.5, {"er": ["x", "Bomb"]}]}}, "extra"),
        ({"image": f"data:image/png;base64,{IMAGE[:400]} bomb"}, "image"),
        ({"image": f"data:,{IMAGE[:64]}/bomb"}, "image"),
        ({"image": IMAGE, "negative_prompt": "bomb"}, "negative_prompt"),
    ],
)
def test_every_text_of_a_body_is_looked_through(body: dict[str, Any], param: str) -> None:
    with pytest.raises(SensitiveWords) as caught:
        check_body(parse_words("bomb"), body)
    assert caught.value.param == param


def test_the_models_name_and_images_are_no_words() -> None:
    words = parse_words("bomb\naaaaaaaa")
    check_body(words, {"model": "bomb-1", "prompt": "a balm", "n": 1, "image": IMAGE})
    check_body(words, {"image": [f"data:image/png;base64,{IMAGE}"], "mask": {"url": "data:image/png;base64," + IMAGE}})
    check_body(None, {"prompt": "bomb"})
    check_body(parse_words(""), {"prompt": "bomb"})


@table_rows(
    "many", ["x" * MAX_CHECKED_CHARS, ["x"] * MAX_CHECKED_CHARS, [0] * MAX_CHECKED_CHARS, [[]] * MAX_CHECKED_CHARS]
)
def test_more_than_can_be_looked_through_is_refused(many: Any) -> None:
    with pytest.raises(InvalidRequest, match="more than 65,536 characters of text") as caught:
        check_body(parse_words("bomb"), {"prompt": "x", "more": many})
    assert caught.value.param == "more"
    check_body(parse_words(""), {"prompt": "x", "more": many})


def test_a_body_may_be_deep() -> None:
    deep: Any = "bomb"
    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(SensitiveWords):
        check_body(parse_words("bomb"), {"deep": deep})


def test_a_gateway_without_a_list_does_not_load_the_searcher() -> None:
    look = (
        "import sys; from gateway.media.word_filter import parse_words as r; r({!r}); "
        "print('ahocorasick_rs' in sys.modules)"
    )
    for text, loaded in (("# none", "False"), ("one", "True")):
        done = subprocess.run([sys.executable, "-c", look.format(text)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == loaded


@given(LATIN, st.data())
def test_disguises_do_not_hide_a_word(word: str, data: st.DataObject) -> None:
    between = st.text(UNSEEN + STROKES, max_size=2)
    dressed = "".join(
        data.draw(st.sampled_from([x, x.upper(), chr(ord(x) + 0xFEE0)])) + data.draw(between) for x in word
    )
    assert find(word, f"say {dressed}, please") == word
    assert find(word, f"x{dressed}") is None


@given(st.lists(LATIN, max_size=8), st.lists(LATIN, max_size=8))
def test_spaced_words_are_found_as_if_each_were_compared(listed: list[str], answers: list[str]) -> None:
    found = find("\n".join(listed), " ".join(answers))
    assert found in {*listed} & {*answers} if {*listed} & {*answers} else found is None


@given(st.text(max_size=30))
def test_any_text_finds_itself_in_all_its_normal_forms(text: str) -> None:
    words = parse_words(text.replace("#", ""))
    for listed in text.replace("#", "").splitlines():
        if len(parse_words(listed)):
            for form in ("NFC", "NFD", "NFKC", "NFKD"):
                assert words.find(unicodedata.normalize(form, listed)) is not None


@given(st.text(st.characters(), max_size=40), st.text(st.characters(), max_size=40))
def test_no_text_is_too_odd_to_be_looked_through(listed: str, text: str) -> None:
    find(listed, text + "\ud800")


def test_a_file_of_words_is_read(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(b"\xef\xbb\xbf# ours\nbomb\nb\xc3\xa9\n")
    assert read_words_text(path) == "# ours\nbomb\nb\u00e9\n"


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    with pytest.raises(FileNotFoundError, match=r"words\.txt"):
        read_words_text(path)
    with pytest.raises(IsADirectoryError):
        read_words_text(tmp_path)
    path.write_bytes(b"one\ntwo\nthr\xffee\n")
    with pytest.raises(ValueError, match=r"words\.txt: line 3 is not UTF-8"):
        read_words_text(path)
    path.write_bytes(b"x" * (MAX_WORDS_MB * 1024 * 1024 + 1))
    with pytest.raises(ValueError, match=r"words\.txt: larger than 2 MB"):
        read_words_text(path)
