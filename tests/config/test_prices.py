"""Prices as operators write them, the list that ships, and the script that writes it."""

import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import takewhile
from pathlib import Path
from typing import Any

import attrs
import pytest
from genai_prices import types

from gateway.billing.price_spec import PriceSpec
from gateway.config.loader import ConfigError, find_data, read_config, read_prices, read_shipped_prices
from gateway.config.schema import Config
from gateway.domain.capability import Capability, find_capability
from gateway.domain.price import ONE_PPM, Price, PriceList, Tier, compute_cost_nanos, nanos, usd
from gateway.domain.usage import MAX_CHARACTERS, MAX_DURATION_MS, MAX_IMAGES, MAX_TOKENS, Usage, UsageDetails
from gateway.formats.videos import dashscope as dashscope_videos
from gateway.formats.videos import fal as fal_videos
from gateway.formats.videos import gemini as gemini_videos
from gateway.formats.videos import kling as kling_videos
from gateway.formats.videos import minimax as minimax_videos
from gateway.parsing import ValidationErrors, parse_table
from gateway.providers.registry import PROVIDERS
from scripts import update_prices
from tests.support.table_rows import table_rows

Run = Callable[..., str | int | None]
DAY = date(2026, 11, 21)
RATES = (
    "input_usd_per_million",
    "cached_input_usd_per_million",
    "output_usd_per_million",
    "cache_write_usd_per_million",
    "cache_write_long_usd_per_million",
)


@pytest.fixture(scope="module")
def shipped() -> PriceList:
    return read_prices(Config())


def read(path: Path, text: str) -> Config:
    path.write_text(text)
    return read_config(path, {})


# What operators write


def test_a_tier_that_leaves_a_price_out_keeps_it() -> None:
    section = {"model": "m", "provider": "gemini", **dict.fromkeys(RATES, 2)}
    price = parse_table({**section, "tiers": [{"above_tokens": 5, RATES[0]: 3}]}, PriceSpec).price()
    two, three = nanos(Decimal(2)), nanos(Decimal(3))
    kept: dict[str, Any] = {"cache_write_nanos_per_million": two, "cache_write_long_nanos_per_million": two}
    assert price == Price("m", two, two, two, provider="gemini", tiers=(Tier(5, three, two, two, **kept),), **kept)


def test_a_tier_has_every_price_that_depends_on_a_prompts_length() -> None:
    section = {"above_tokens": 5, **{name: number for number, name in enumerate(RATES, 1)}}
    (tier,) = parse_table({"model": "m", "tiers": [section]}, PriceSpec).price().tiers
    assert tier == Tier(5, *(nanos(Decimal(number)) for number in range(1, 6)))


def test_a_tier_without_a_price_for_cached_tokens_takes_its_own_input_price() -> None:
    price = parse_table({"model": "m", "tiers": [{"above_tokens": 5, RATES[0]: 3}]}, PriceSpec).price()
    assert usd(compute_cost_nanos(price, Usage(1_000_000, 0, 1_000_000))) == "3"


@table_rows(
    ("key", "value", "where"),
    [
        ("provider", "no/such provider!", "provider"),
        ("provider", "", "provider"),
        ("provider", 5, "provider"),
        (RATES[0], 1_000.1, RATES[0]),
        (RATES[2], -1, RATES[2]),
        (RATES[3], 1_001, RATES[3]),
        (RATES[4], -1, RATES[4]),
        ("usd_per_image", 101, "usd_per_image"),
        ("usd_per_second", 11, "usd_per_second"),
        ("usd_per_million_characters", 1_000.1, "usd_per_million_characters"),
        ("usd_per_million_characters", -1, "usd_per_million_characters"),
        ("tiers", {}, "tiers"),
        ("tiers", [{}], "tiers[0].above_tokens"),
        ("tiers", [{"above_tokens": 0}], "tiers[0].above_tokens"),
        ("tiers", [{"above_tokens": 5, RATES[1]: -1}], f"tiers[0].{RATES[1]}"),
        ("tiers", [{"above_tokens": 5, "usd_per_image": 1}], "tiers[0].usd_per_image"),
        ("tiers", [{"above_tokens": 5}, {"above_tokens": 5, RATES[0]: 1}], "tiers"),
    ],
)
def test_a_price_that_cannot_be_is_told_with_its_key(key: str, value: Any, where: str) -> None:
    with pytest.raises(ValidationErrors) as caught:
        parse_table({"model": "m", "usd_per_call": 1, key: value}, PriceSpec)
    assert [problem[0] for problem in caught.value.problems] == [where]


def test_a_model_may_have_a_price_of_its_own_at_each_provider(tmp_path: Path) -> None:
    tables = "".join(
        f'[[price]]\nmodel = "m"\nfree = true\n{where}' for where in ("", 'provider = "a"\n', 'provider = "b"\n')
    )
    config = read(tmp_path / "gateway.toml", tables)
    assert [section.provider for section in config.price] == [None, "a", "b"]


@pytest.mark.parametrize("provider", ["", 'provider = "a"\n'])
def test_but_one_and_no_more(tmp_path: Path, provider: str) -> None:
    with pytest.raises(ConfigError, match=r"price\[1\]\.model: expected a model of its own; price\[0\] has it"):
        read(tmp_path / "gateway.toml", f'[[price]]\nmodel = "m"\nfree = true\n{provider}' * 2)


def test_a_price_without_a_model_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path / "gateway.toml", "[[price]]\n" * 2)
    assert len(caught.value.problems) == 2


def test_the_most_that_may_be_charged_is_a_64_bit_integer() -> None:
    """Everything at its bound: prices, what a request can use, and the multipliers of channel and group."""
    bounds = {**dict.fromkeys(RATES, 1_000), "usd_per_image": 100, "usd_per_second": 10}
    bounds["usd_per_million_characters"] = 1_000
    price = parse_table({"model": "m", **bounds}, PriceSpec).price()
    most = Usage(MAX_TOKENS, MAX_TOKENS, 0, "upstream", MAX_IMAGES, MAX_DURATION_MS, characters=MAX_CHARACTERS)
    assert 2**62 < compute_cost_nanos(price, most, 100 * 100 * ONE_PPM) < 2**63


# What ships


def test_every_line_of_the_list_counts() -> None:
    listed = tomllib.loads(find_data("prices.toml").read_text())["price"]
    assert (
        len(read_shipped_prices()) == len(listed) == len({(table["model"], table.get("provider")) for table in listed})
    )


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("gpt-6.1-sol", "openai"),
        ("gpt-6.1-sol", "custom"),
        ("gpt-6.1-sol", "azure_openai"),
        ("gpt-6-luna-2026-09-01", "openai"),
        ("gpt-4o-mini", "openai"),
        ("text-embedding-3-small", "openai"),
        ("gpt-image-2", "openai"),
        ("whisper-1", "openai"),
        ("tts-1", "openai"),
        ("gpt-4o-mini-tts", "openai"),
        ("gpt-4o-transcribe", "openai"),
        ("canopylabs/orpheus-v1-english", "groq"),
        ("claude-opus-5-5", "anthropic"),
        ("claude-sonnet-5-5-20261001", "anthropic"),
        ("claude-haiku-4-5-20251001", "anthropic"),
        ("gemini-3.5-flash", "gemini"),
        ("gemini-2.5-pro", "gemini"),
        ("gemini-embedding-001", "gemini"),
        ("grok-4.7", "xai"),
        ("mistral-large-latest", "mistral"),
        ("deepseek-chat", "deepseek"),
        ("kimi-k3", "moonshot"),
        ("glm-5.3", "zhipu"),
        ("openai/gpt-oss-120b", "groq"),
        ("moonshotai/Kimi-K3", "together"),
        ("accounts/fireworks/models/glm-5p3", "fireworks"),
    ],
)
def test_well_known_models_cost_something(shipped: PriceList, model: str, provider: str) -> None:
    assert (
        compute_cost_nanos(shipped.find(model, provider), Usage(1_000, 1_000, duration_ms=1_000, characters=1_000)) > 0
    )


@pytest.mark.parametrize(("model", "dollars"), [("tts-1", "15"), ("tts-1-hd", "30")])
def test_speech_is_sold_by_the_character(shipped: PriceList, model: str, dollars: str) -> None:
    assert usd(compute_cost_nanos(shipped.find(model, "openai"), Usage(5, 5, characters=1_000_000))) == dollars


HEARD = UsageDetails(audio_input=1_000_000)


def test_who_transcribes_is_paid_for_sound(shipped: PriceList) -> None:
    assert usd(compute_cost_nanos(shipped.find("gpt-4o-transcribe", "openai"), Usage(1_000_000, details=HEARD))) == "6"


@pytest.mark.parametrize(
    ("model", "provider", "dollars"),
    [("claude-opus-5-5", "anthropic", ("4", "5", "8")), ("claude-haiku-5-5", "anthropic", ("0.5", "0.625", "1")),
     ("gpt-6.1-sol", "openai", ("4", "5", "5")), ("gemini-2.5-pro", "gemini", ("2.5", "2.5", "2.5"))],
)  # fmt: skip
def test_a_million_tokens_cost_more_where_they_are_written_into_a_cache(
    shipped: PriceList, model: str, provider: str, dollars: tuple[str, str, str]
) -> None:
    """Read, written, written for an hour."""
    price = shipped.find(model, provider)
    usages = (
        Usage(1_000_000),
        Usage(1_000_000, written_tokens=1_000_000),
        Usage(1_000_000, written_tokens=1_000_000, written_long_tokens=1_000_000),
    )
    assert tuple(usd(compute_cost_nanos(price, usage)) for usage in usages) == dollars


MAKERS = {"claude-": "anthropic", "gpt-": "openai", "gemini-": "google", "grok-": "x-ai", "mistral-": "mistralai"}


MIXED = Usage(1_000, 1_000, images=1, duration_ms=1_000, characters=1_000)


def list_spellings(name: str) -> Iterator[str]:
    """Yield other usual spellings of a model's name."""
    dashed = re.sub(r"(?<=\d)\.(?=\d)", "-", name)
    dotted = re.sub(r"(?<=[a-z]-\d)-(?=\d(?:-|$))", ".", name)
    maker = next((maker for stem, maker in MAKERS.items() if name.startswith(stem)), None)
    for spelling in (name, dashed, dotted):
        yield from (spelling, spelling.upper())
        if maker is not None:
            yield from (f"{maker}/{spelling}", f"models/{spelling}")
        if not re.search(r"\d{4}$|\d\d-\d\d$|[:*]", spelling):
            yield from (f"{spelling}-20991231", f"{spelling}-2099-12-31", f"{spelling}@20991231")


def test_every_usual_spelling_of_every_listed_model_has_its_price(shipped: PriceList) -> None:
    """Unless the spelling itself is listed. Where two spellings of a model have different prices, it is no cheaper."""
    listed = {price.model.lower() for price in shipped.list_prices()}
    wrong, tried = [], 0
    for price in shipped.list_prices():
        if "*" in price.model or (price.provider == "openrouter" and "/" not in price.model):
            continue  # OpenRouter's names have a maker; the old ones without have prices of their own
        cost = compute_cost_nanos(price, MIXED)
        for spelling in list_spellings(price.model):
            provider = price.provider or "custom"
            if spelling.lower() not in listed:
                tried += 1
                found = shipped.find(spelling, provider)
                if found is None or compute_cost_nanos(found, MIXED) < cost:
                    wrong.append((spelling, provider, found and found.model))
    assert wrong == []
    assert tried > 3_000


def test_a_few_spellings_as_the_vendors_write_them(shipped: PriceList) -> None:
    spellings = (
        "claude-sonnet-4-5",
        "claude-sonnet-4.5",
        "claude-sonnet-4-5-20250929",
        "anthropic/claude-sonnet-4.5",
        "anthropic/claude-4.5-sonnet-20250929",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "claude-sonnet-4-5@20250929",
    )
    prices = {spelling: shipped.find(spelling, "custom") for spelling in spellings}
    assert set(prices.values()) == {shipped.find("claude-sonnet-4-5", "anthropic")} != {None}


def test_what_a_reseller_asks_is_for_its_own_channels(shipped: PriceList) -> None:
    assert shipped.find("openai/gpt-oss-120b", "groq") != shipped.find("openai/gpt-oss-120b", "together")
    assert shipped.find("openai/gpt-oss-120b", "custom") is None
    assert shipped.find("glm-5.3", "zhipu") != shipped.find("glm-5.3", "custom")


def test_what_is_free_at_one_provider_is_not_said_to_be_free_elsewhere(shipped: PriceList) -> None:
    assert shipped.find("gemma-4-31b-it", "gemini") == Price("gemma-4-31b-it", provider="gemini")
    assert shipped.find("gemma-4-31b-it", "custom") is None


def test_the_operators_general_price_wins_over_a_shipped_one_for_a_provider() -> None:
    mine = PriceSpec("glm-5.*", input_usd_per_million=Decimal(7))
    prices = read_prices(Config(price=(mine,)))
    assert prices.find("glm-5.3", "zhipu") == prices.find("glm-5.3") == mine.price()
    assert prices.find("glm-4.7", "zhipu") == read_prices(Config()).find("glm-4.7", "zhipu")


@pytest.mark.parametrize("provider", ["ollama", "lm_studio", "vllm", "llama_cpp", "demo"])
@pytest.mark.parametrize("model", ["llama3:8b", "gpt-4o", "claude-sonnet-4.5", "command-r"])
def test_a_server_of_the_operators_own_costs_nothing_on_purpose(shipped: PriceList, provider: str, model: str) -> None:
    price = shipped.find(model, provider)
    assert price is not None
    assert not price.units
    mine = PriceSpec(model, input_usd_per_million=Decimal(7))
    assert read_prices(Config(price=(mine,))).find(model, provider) == mine.price()


# Videos

_WAN = {"720P": "0.1", "1080P": "0.15"}
_WAN_5 = {"480P": "0.05", **_WAN}
_WAN_2 = {"480P": "0.02", "1080P": "0.1"}
_WAN_TURBO = {"480P": "0.036", "720P": "0.036"}
_WAN_PLUS = {"720P": "0.1"}
_KLING_3 = {"720p": "0.084", "1080p": "0.112", "4k": "0.42"}
_KLING_2 = {"720p": "0.042", "1080p": "0.07"}
_HAILUO = {"768P": "0.056", "1080P": "0.081666667"}
_SORA = {"sora-2": {"small": "0.1"}, "sora-2-pro": {"small": "0.3", "middle": "0.5"}}
A_SECOND = {
    **dict.fromkeys(("openai", "azure_openai"), _SORA),
    "gemini": {
        "veo-3.1-generate-preview": {"720p": "0.4", "1080p": "0.4", "4k": "0.6"},
        "veo-3.1-fast-generate-preview": {"720p": "0.1", "1080p": "0.12", "4k": "0.3"},
        "veo-3.1-lite-generate-preview": {"720p": "0.05", "1080p": "0.08"},
    },
    "vertex": {
        "veo-3.1-generate-001": {"720p": "0.4", "1080p": "0.4", "4k": "0.6"},
        "veo-3.1-fast-generate-001": {"720p": "0.1", "1080p": "0.12", "4k": "0.3"},
        "veo-3.1-lite-generate-001": {"720p": "0.05", "1080p": "0.08"},
    },
    "kling": {
        **dict.fromkeys(("kling-3.0", "kling-v3", "kling-3.0-omni"), _KLING_3),
        "kling-3.0-turbo": {"720p": "0.112", "1080p": "0.14"},
        "kling-o1": {"720p": "0.084", "1080p": "0.112"},
        **dict.fromkeys(("kling-2.6", "kling-v2-6", "kling-v2-5-turbo"), _KLING_2),
    },
    "minimax": {
        "MiniMax-H3": {"768P": "0.08", "2K": "0.13"},
        "MiniMax-H3-Max": {"768P": "0.08", "480P": "0.05"},
        **dict.fromkeys(("MiniMax-Hailuo-2.3", "MiniMax-Hailuo-02"), _HAILUO),
        "MiniMax-Hailuo-2.3-Fast": {"768P": "0.032", "1080P": "0.055"},
    },
    "runway": {
        "gen4.5": {"small": "0.12"},
        "gen4_turbo": {"small": "0.05"},
        "veo3.1": {"small": "0.4", "middle": "0.4"},
        "veo3.1_fast": {"small": "0.15", "middle": "0.15"},
        "seedance2": {"small": "0.36", "middle": "0.4", "large": "1.5"},
        "seedance2_fast": {"small": "0.29"},
        "seedance2_mini": {"small": "0.16"},
        "gemini_omni_flash": {"small": "0.103333334"},
    },
    "dashscope": {
        **dict.fromkeys(("wan2.7-t2v", "wan2.7-i2v-2026-04-25", "wan2.6-t2v", "wan2.6-i2v", "wan2.6-i2v-us"), _WAN),
        "wan2.6-i2v-flash": {"720P": "0.05", "1080P": "0.075"},
        **dict.fromkeys(("wan2.5-t2v-preview", "wan2.5-i2v-preview"), _WAN_5),
        **dict.fromkeys(("wan2.2-t2v-plus", "wan2.2-i2v-plus"), _WAN_2),
        "wan2.2-i2v-flash": {"480P": "0.015", "720P": "0.036", "1080P": "0.06881"},
        **dict.fromkeys(("wanx2.1-t2v-turbo", "wan2.1-i2v-turbo"), _WAN_TURBO),
        **dict.fromkeys(("wan2.1-t2v-plus", "wanx2.1-i2v-plus"), _WAN_PLUS),
    },
    "fal_queue": {
        "fal-ai/veo3.1": {"720p": "0.4", "1080p": "0.4", "4k": "0.6"},
        "fal-ai/veo3.1/lite": {"720p": "0.05", "1080p": "0.08"},
        "fal-ai/veo3": {"720p": "0.4", "1080p": "0.4"},
        "fal-ai/veo3/fast": {"720p": "0.15", "1080p": "0.15"},
        "fal-ai/luma-dream-machine/ray-2-flash": {"540p": "0.04", "720p": "0.08", "1080p": "0.16"},
    },
}
"""Dollars, by the vendors' own words for their sizes."""
UNPRICED = ("T2V-01", "I2V-01", "*seedance-", "ray-3.2")
"""What no page names in dollars and seconds."""


def find_entry(provider: str, model: str) -> Capability:
    entry = find_capability(PROVIDERS[provider].capabilities, model)
    assert entry is not None
    return entry


def tell_size(provider: str, entry: Capability, size: str) -> str:
    """A size as its vendor is told it; to those who are told pixels, by how many there are."""
    match provider:
        case "gemini" | "vertex":
            return gemini_videos.SIZES[size][1]
        case "kling":
            return kling_videos.MODELS[entry.name].sizes[size][1]
        case "minimax":
            return minimax_videos.MODELS[entry.name].sizes[size][0]
        case "fal_queue":
            return fal_videos.MODELS[entry.name].sizes[size][1]
        case "dashscope":
            return dashscope_videos.MODELS[entry.name].sizes[size][0]
    wide, high = map(int, size.split("x"))
    return "small" if wide * high < 1_200_000 else "middle" if wide * high < 3_000_000 else "large"


def test_every_size_of_every_video_costs_what_its_vendor_asks(shipped: PriceList) -> None:
    reported: dict[str, dict[str, set[tuple[str, str]]]] = {}
    for provider, models in A_SECOND.items():
        for model in models:
            price, entry = shipped.find(model, provider), find_entry(provider, model)
            reported.setdefault(provider, {})[model] = {
                (tell_size(provider, entry, size), usd(compute_cost_nanos(price, Usage(duration_ms=1_000, size=size))))
                for size in entry.sizes or ()
            }
    asked = {
        provider: {model: set(dollars.items()) for model, dollars in models.items()}
        for provider, models in A_SECOND.items()
    }
    assert reported == asked


def test_every_model_that_is_known_to_film_is_among_them_but_those_that_nobody_prices() -> None:
    priced = {(slug, find_entry(slug, model).name) for slug, models in A_SECOND.items() for model in models}
    known = {
        (slug, entry.name)
        for slug, one in PROVIDERS.items()
        for entry in one.capabilities
        if entry.seconds and slug != "demo"
    }
    assert {pair for pair in known - priced if not pair[1].startswith(UNPRICED)} == set()
    assert not any(name.startswith(UNPRICED) for _, name in priced)


def test_where_no_size_is_named_a_video_costs_as_the_one_that_is_made(shipped: PriceList) -> None:
    for provider, models in A_SECOND.items():
        for model in models:
            price, sizes = shipped.find(model, provider), find_entry(provider, model).sizes
            assert price is not None
            assert sizes
            assert price.find_second_nanos("") == price.find_second_nanos(sizes[0]) > 0, model


def test_a_vendors_price_of_a_video_is_not_that_of_others_who_sell_it(shipped: PriceList) -> None:
    models = [model for models in A_SECOND.values() for model in models]
    assert [model for model in models if shipped.find(model, "custom")] == []


# The script


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("--check")``: the script, and what it ends with; None if it ends well."""

    def run_main(*options: str) -> str | int | None:
        monkeypatch.setattr(sys, "argv", [update_prices.__file__, *options])
        try:
            update_prices.main()
        except SystemExit as ended:
            return ended.code
        return None

    return run_main


@pytest.mark.slow
def test_the_list_that_ships_is_what_the_script_writes(tmp_path: Path, run: Run) -> None:
    shipped, path = find_data("prices.toml").read_text(), tmp_path / "prices.toml"
    day = re.search(r"in force on (\S+)\.$", shipped.splitlines()[0])
    assert day is not None
    assert run("--file", str(path), "--date", day[1]) is None
    assert path.read_text() == shipped


@pytest.mark.slow
def test_check_tells_a_list_that_was_edited_and_leaves_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of every price with the package has its own tests, and takes most of the time."""
    monkeypatch.setattr(update_prices, "find_disagreements", lambda *_: ())

    path = tmp_path / "prices.toml"
    path.write_text(find_data("prices.toml").read_text().replace("gpt-4o-mini", "gpt-4o-tiny"))
    before = path.read_text()
    assert str(path) in str(run("--check", "--file", str(path)))
    assert path.read_text() == before


@pytest.mark.slow
def test_a_list_that_disagrees_with_the_package_is_refused() -> None:
    listed = tomllib.loads(find_data("prices.toml").read_text(), parse_float=Decimal)["price"]
    prices = {table["model"]: parse_table(table, PriceSpec).price() for table in listed if "provider" not in table}
    wrong = [price for model, price in prices.items() if model != "gpt-5.1-codex-max"]
    wrong += [attrs.evolve(prices["gpt-6.1-sol"], tiers=()), Price("claude-*")]
    problems = update_prices.find_disagreements(PriceList(wrong), DAY)
    # The first two vendors show it: to compare every price takes a second.
    message = "\n".join(takewhile(lambda problem: problem.startswith(("openai:", "anthropic:")), problems))
    for problem in ("openai: gpt-5.1-codex-max has no price", "openai: gpt-6.1-sol is ", "anthropic: claude-2 is "):
        assert problem in message
    assert "openai: gpt-4o-mini" not in message


@table_rows(
    ("clause", "names"),
    [
        (types.ClauseEquals("m"), ["m"]),
        (types.ClauseStartsWith("m-"), ["m-*"]),
        (types.ClauseRegex(r"^gpt-6\.1-sol-\d{4}-\d{2}-\d{2}$"), ["gpt-6.1-sol-20*"]),
        (types.ClauseRegex(r"^claude-opus-5[-@]\d{8}$"), ["claude-opus-5-20*"]),
        (types.ClauseRegex(r"^gemini-4-argon-\d"), ["gemini-4-argon-[0-9]*"]),
        (types.ClauseRegex(r"^(?!.*-tts)"), []),
        (types.ClauseContains("m"), []),
        (types.ClauseEndsWith("m"), []),
        (types.ClauseOr([types.ClauseEquals("a"), types.ClauseOr([types.ClauseEquals("b")])]), ["a", "b"]),
        (types.ClauseAnd([types.ClauseStartsWith("a"), types.ClauseRegex("^(?!.*-tts)")]), ["a*"]),
    ],
    ids=repr,
)
def test_a_clause_becomes_names_and_globs_or_nothing(clause: Any, names: list[str]) -> None:
    assert list(update_prices.read_names(clause)) == names


def make_model(*prices: tuple[types.StartDateConstraint | types.TimeOfDateConstraint | None, int]) -> types.ModelInfo:
    conditional = [
        types.ConditionalPrice(limit, prices=types.ModelPrice(input_mtok=Decimal(amount))) for limit, amount in prices
    ]
    return types.ModelInfo("m", types.ClauseEquals("m"), prices=conditional)


@table_rows(("day", "amount"), [(date(2026, 11, 30), 1), (date(2026, 12, 1), 2), (date(2027, 5, 1), 2)])
def test_the_price_is_the_one_in_force_on_the_day(day: date, amount: int) -> None:
    model = make_model((None, 1), (types.StartDateConstraint(date(2026, 12, 1)), 2))
    assert update_prices.find_prices(model, day).input_mtok == amount


@table_rows("rush", [1, 3])
def test_of_a_price_that_changes_with_the_hour_it_is_the_highest(rush: int) -> None:
    hours = types.TimeOfDateConstraint(time(1, tzinfo=UTC), time(4, tzinfo=UTC))
    model = make_model((None, 2), (hours, rush))
    assert model.get_prices(datetime(2026, 11, 21, 2, tzinfo=UTC)).input_mtok == rush
    assert update_prices.find_prices(model, DAY).input_mtok == max(2, rush)


@table_rows(
    ("videos", "dollars"),
    [([("0.28", 6), ("0.56", 10)], "0.056"), ([("0.19", 6), ("0.32", 10)], "0.032"), ([("0.49", 6)], "0.081666667")],
)
def test_no_video_that_is_sold_as_a_whole_costs_less_by_the_second(videos: list[tuple[str, int]], dollars: str) -> None:
    second = update_prices.find_highest_second(*videos)
    assert second == Decimal(dollars)
    assert all(seconds * second >= Decimal(price) for price, seconds in videos)


def test_characters_and_sound_that_is_transcribed_become_a_price() -> None:
    spoken = update_prices.read_section("tts-1", types.ModelPrice(input_mchars=Decimal(15)))
    assert spoken.price() == Price("tts-1", character_nanos_per_million=nanos(Decimal(15)))
    heard = types.ModelPrice(input_mtok=Decimal("2.5"), input_audio_mtok=Decimal(6), output_mtok=Decimal(10))
    section = update_prices.read_section("a-transcribe", heard)
    assert (section.input_usd_per_million, section.audio_input_usd_per_million) == (Decimal("2.5"), Decimal(6))


def test_sound_has_its_own_price_where_its_tokens_are_reported() -> None:
    prices = types.ModelPrice(
        input_mtok=Decimal(4),
        output_mtok=Decimal(16),
        input_audio_mtok=Decimal(32),
        cache_audio_read_mtok=Decimal("0.4"),
        output_audio_mtok=Decimal(64),
    )
    assert update_prices.read_section("m", prices).price() == Price(
        "m",
        nanos(Decimal(4)),
        None,
        nanos(Decimal(16)),
        audio_input_nanos_per_million=nanos(Decimal(32)),
        cached_audio_input_nanos_per_million=nanos(Decimal("0.4")),
        audio_output_nanos_per_million=nanos(Decimal(64)),
    )


def test_tiers_hours_and_drawn_answers_become_a_price() -> None:
    def tiered(base: int, above: int) -> types.TieredPrices:
        return types.TieredPrices(Decimal(base), [types.Tier(200_000, Decimal(above))])

    prices = types.ModelPrice(
        input_mtok=tiered(1, 2),
        cache_read_mtok=Decimal("0.1"),
        output_mtok=tiered(5, 6),
        output_image_mtok=Decimal(30),
        audio_hours=Decimal(1),
        cache_write_mtok=tiered(4, 8),
        cache_write_1h_mtok=Decimal(9),
    )
    assert update_prices.read_section("m", prices).price() == Price(
        "m",
        nanos(Decimal(1)),
        nanos(Decimal("0.1")),
        nanos(Decimal(5)),
        second_nanos=277_778,
        cache_write_nanos_per_million=nanos(Decimal(4)),
        cache_write_long_nanos_per_million=nanos(Decimal(9)),
        tiers=(Tier(200_000, *(nanos(Decimal(rate)) for rate in ("2", "0.1", "6", "8", "9"))),),
        image_output_nanos_per_million=nanos(Decimal(30)),
    )


@pytest.mark.parametrize(
    ("model", "asked", "answered"),
    [
        ("anthropic.claude-opus-5", "5.5", "27.5"),
        ("us.anthropic.claude-opus-5-v1:0", "5.5", "27.5"),
        ("global.anthropic.claude-opus-5", "5", "25"),
        ("us-gov.anthropic.claude-sonnet-4-5-20250929-v1:0", "3.3", "16.5"),
        ("global.anthropic.claude-sonnet-4-5-20250929-v1:0", "3", "15"),
        ("us.amazon.nova-lite-v1:0", "0.06", "0.24"),
        ("eu.meta.llama3-3-70b-instruct-v1:0", "0.72", "0.72"),
        ("us.writer.palmyra-x5-v1:0", "0.6", "6"),
    ],
)
@pytest.mark.parametrize("provider", ["bedrock", "bedrock_converse"])
def test_a_model_of_bedrock_costs_more_in_a_region_than_everywhere(
    shipped: PriceList, provider: str, model: str, asked: str, answered: str
) -> None:
    price = shipped.find(model, provider)
    assert price is not None
    cost = [compute_cost_nanos(price, Usage(1_000_000)), compute_cost_nanos(price, Usage(0, 1_000_000))]
    assert [usd(nanos) for nanos in cost] == [asked, answered]


def test_what_bedrock_asks_is_not_what_the_maker_asks(shipped: PriceList) -> None:
    for provider in ("anthropic", "custom"):
        price = shipped.find("claude-opus-5", provider)
        assert price is not None
        assert usd(compute_cost_nanos(price, Usage(1_000_000))) == "5"


def test_no_key_of_the_source_is_dropped() -> None:
    """Every key of every entry is kept, or named with the reason why no request can be paid by it."""
    read: dict[str, str] = {
        **{key: ours for key, (ours, _, _) in update_prices.MODAL.items()},
        **update_prices.BESIDE,
        **update_prices.COUNTED,
        "input_mtok": "input_usd_per_million",
        "output_mtok": "output_usd_per_million",
        "cache_read_mtok": "cached_input_usd_per_million",
        "cache_write_mtok": "cache_write_usd_per_million",
        "cache_write_1h_mtok": "cache_write_long_usd_per_million",
        "input_mchars": "usd_per_million_characters",
        **dict.fromkeys(update_prices.HOURS, "usd_per_second"),
    }
    entries = 0
    for vendor in update_prices.providers:  # type: ignore[attr-defined]
        for model in vendor.models:
            prices = update_prices.find_prices(model, DAY)
            reported = {key: value for key, value in vars(prices).items() if value is not None}
            assert reported.keys() <= read.keys() | update_prices.NOT_SERVED.keys(), (vendor.id, model.id)
            section = update_prices.read_section(model.id, prices)
            for key in reported.keys() & read.keys():
                base = reported[key].base if isinstance(reported[key], types.TieredPrices) else reported[key]
                assert bool(getattr(section, read[key])) == bool(base), (vendor.id, model.id, key)
            entries += 1
    assert entries > 2_000
    assert read.keys() == update_prices.KEPT
