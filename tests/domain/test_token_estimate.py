# ruff: noqa: E501, RUF001 - the sentences are as they are
import base64
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway.domain.token_estimate import estimate_sample, estimate_text
from tests.support.table_rows import table_rows

SENTENCES = [
    ("Gujarati", "હેલો, મારું નામ જીપીટી-4o છે. હું એક નવા પ્રકારનું ભાષા મોડલ છું. તમને મળીને સારું લાગ્યું!", 33, 145),
    ("Telugu", "నమస్కారము, నా పేరు జీపీటీ-4o. నేను ఒక్క కొత్త రకమైన భాషా మోడల్ ని. మిమ్మల్ని కలిసినందుకు సంతోషం!", 45, 159),
    ("Tamil", "வணக்கம், என் பெயர் ஜிபிடி-4o. நான் ஒரு புதிய வகை மொழி மாடல். உங்களை சந்தித்ததில் மகிழ்ச்சி!", 35, 116),
    ("Hindi", "नमस्ते, मेरा नाम जीपीटी-4o है। मैं एक नए प्रकार का भाषा मॉडल हूँ। आपसे मिलकर अच्छा लगा!", 31, 90),
    ("Arabic", "مرحبًا، اسمي جي بي تي-4o. أنا نوع جديد من نموذج اللغة، سررت بلقائك!", 26, 53),
    ("Russian", "Привет, меня зовут GPT-4o. Я — новая языковая модель, приятно познакомиться!", 23, 39),
    ("Korean", "안녕하세요, 제 이름은 GPT-4o입니다. 저는 새로운 유형의 언어 모델입니다, 만나서 반갑습니다!", 27, 45),
    ("Vietnamese", "Xin chào, tên tôi là GPT-4o. Tôi là một loại mô hình ngôn ngữ mới, rất vui được gặp bạn!", 30, 46),
    ("Chinese", "你好，我的名字是GPT-4o。我是一种新型的语言模型，很高兴见到你!", 24, 34),
    ("Japanese", "こんにちわ、私の名前はGPT-4oです。私は新しいタイプの言語モデルです、初めまして", 26, 37),
    ("Turkish", "Merhaba, benim adım GPT-4o. Ben yeni bir dil modeli türüyüm, tanıştığımıza memnun oldum!", 30, 39),
    ("German", "Hallo, mein Name is GPT-4o. Ich bin ein neues KI-Sprachmodell. Es ist schön, dich kennenzulernen.", 29, 34),
    ("Spanish", "Hola, me llamo GPT-4o. Soy un nuevo tipo de modelo de lenguaje, ¡es un placer conocerte!", 26, 29),
    ("French", "Bonjour, je m'appelle GPT-4o. Je suis un nouveau type de modèle de langage, c'est un plaisir de vous rencontrer!",
     28, 31),
    ("English", "Hello, my name is GPT-4o. I'm a new type of language model, it's nice to meet you!", 24, 27),
]  # fmt: skip
"""Of "Hello GPT-4o", language tokenization: tokens by ``o200k_base`` and by ``cl100k_base``."""
NOISE = b"".join(sha256(b"%d" % index).digest() for index in range(200))
TEXTS = st.text(max_size=300)


@table_rows(("language", "text", "few", "many"), SENTENCES, ids=lambda value: str(value)[:12])
def test_an_estimate_lies_between_what_vocabularies_make_of_a_language(
    language: str, text: str, few: int, many: int
) -> None:
    assert few * 0.85 <= estimate_text(text) <= many, language


@table_rows(
    ("text", "least", "most"),
    [
        ("".join(path.read_text() for path in sorted(Path(gateway.__file__).parent.glob("billing/*.py"))), 3.0, 4.8),
        (base64.b64encode(NOISE).decode(), 1.2, 1.8),
        (NOISE.hex(), 1.2, 2.2),
        ("สวัสดีครับ ผมยินดีที่ได้รู้จัก" * 20, 1.0, 2.5),
        ("0123456789" * 50, 1.0, 3.0),
    ],
    ids=["code", "base64", "hexadecimal", "Thai", "digits"],
)
def test_what_is_no_prose_has_its_own_length_of_a_token(text: str, least: float, most: float) -> None:
    """Characters of a token."""
    assert least <= len(text) / estimate_text(text) <= most


@given(TEXTS)
def test_an_estimate_is_within_the_bytes_and_no_text_is_free(text: str) -> None:
    assert bool(text) <= estimate_text(text) <= len(text.encode(errors="surrogatepass"))


@given(TEXTS, TEXTS)
def test_more_text_is_not_less_and_two_texts_are_as_much_as_both(one: str, other: str) -> None:
    apart, together = estimate_text(one) + estimate_text(other), estimate_text(one + other)
    assert together >= max(estimate_text(one), estimate_text(other))
    assert abs(together - apart) <= 3


@given(st.sampled_from([text for _, text, _, _ in SENTENCES]), st.integers(2_000, 8_000))
def test_a_sample_of_a_long_text_says_what_the_whole_would(text: str, times: int) -> None:
    assert estimate_text(text * times) == pytest.approx(estimate_text(text * 300) * times / 300, rel=0.1)


def test_scripts_in_turn_cannot_hide_from_the_sample() -> None:
    """English where the sample looks does not hide the Chinese between: that is counted by its bytes."""
    english, chinese = "The quick brown fox. " * 98, "我是一种新型的语言模型。" * 4_000
    mixed = (english + chinese) * 8
    assert estimate_text(mixed) >= 0.6 * 8 * (estimate_text(english) + estimate_text(chinese))


def test_a_sample_of_pieces_stands_for_all_of_them() -> None:
    assert estimate_sample(["one two three"], 1, 10) == 10 * estimate_text("one two three")
    assert estimate_sample(["one", " two"], 2, 2) == estimate_text("one two")
    assert estimate_sample([], 0, 5) == 0
