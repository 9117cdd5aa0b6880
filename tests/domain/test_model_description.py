"""What is said of a model: where it comes from, and what holds for several at once."""

from gateway.domain.model_description import (
    UNDESCRIBED,
    ModelDescription,
    find_common,
    find_configured_description,
    list_known_properties,
    sort_features,
    sort_modalities,
)

SMALL = ModelDescription("chat", 8_192, 2_048, ("text",), ("text",), ("tools",))
LARGE = ModelDescription(
    "chat", 128_000, 16_384, ("text", "image"), ("text",), ("tools", "reasoning"), "2027-01-31T00:00:00Z"
)


def test_only_what_is_unknown_is_taken_from_elsewhere() -> None:
    assert ModelDescription(context_window=5, features=()).fill_from(LARGE) == ModelDescription(
        "chat", 5, 16_384, ("text", "image"), ("text",), (), "2027-01-31T00:00:00Z"
    )
    assert LARGE.fill_from(SMALL) == LARGE
    assert UNDESCRIBED.fill_from(UNDESCRIBED) == UNDESCRIBED


def test_what_is_unknown_is_left_out() -> None:
    assert list_known_properties(UNDESCRIBED) == {}
    assert list_known_properties(ModelDescription(max_output_tokens=5, features=())) == {
        "max_output_tokens": 5,
        "features": (),
    }


def test_of_several_the_least_holds() -> None:
    common = ModelDescription("chat", 8_192, 2_048, ("text",), ("text",), ("tools",), "2027-01-31T00:00:00Z")
    assert find_common([LARGE, SMALL], complete=True) == common
    assert find_common([LARGE], complete=True) == LARGE
    assert find_common([], complete=True) == UNDESCRIBED


def test_what_one_of_several_models_does_not_say_is_unknown_unless_they_are_one_model() -> None:
    silent = ModelDescription("embedding", None, 512)
    assert find_common([SMALL, silent], complete=True) == ModelDescription(None, None, 512)
    assert find_common([SMALL, silent], complete=False) == ModelDescription(
        None, 8_192, 512, ("text",), ("text",), ("tools",)
    )


def test_of_several_ends_the_first_counts() -> None:
    later = ModelDescription(deprecated_at="2028-01-01T00:00:00Z")
    assert find_common([later, LARGE, SMALL], complete=True).deprecated_at == LARGE.deprecated_at
    assert find_common([later, LARGE, SMALL], complete=False).deprecated_at == LARGE.deprecated_at


def test_a_configured_name_precedes_a_glob_and_a_longer_glob_a_shorter_one() -> None:
    entries = [
        ("*", ModelDescription(context_window=1)),
        ("gpt-*", ModelDescription(context_window=2)),
        ("theirs", ModelDescription(context_window=3)),
    ]
    found = [
        find_configured_description(entries, *names).context_window
        for names in (("x",), ("gpt-5", "x"), ("gpt-5", "theirs"))
    ]
    assert found == [1, 2, 3]
    assert find_configured_description(entries[1:], "x") == find_configured_description([], "x") == UNDESCRIBED


def test_unknown_words_of_a_provider_are_left_out() -> None:
    assert sort_modalities(["image", "smell", None, "text"]) == ("text", "image")
    assert sort_features(["reasoning", 5, "tools"]) == ("tools", "reasoning")
