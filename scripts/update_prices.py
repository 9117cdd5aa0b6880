"""Writes config/prices.toml from the price list that the genai-prices package carries; no network is asked.

    .venv/bin/python -m pip install -U genai-prices     # its version in pyproject.toml, then make pins
    .venv/bin/python scripts/update_prices.py           # the prices of today
    .venv/bin/python scripts/update_prices.py --check   # exit code 1 where the file is not what this would write

Of videos, and of pictures that are sold by the piece, the package knows nothing: what they cost stands here
(``STUDIOS``, ``GALLERIES``), each vendor's with its page, and is renewed by hand.

Before anything is written the new list is asked for every name the package knows, and a few more that its patterns
match, and every answer is compared with the package's own arithmetic.
"""

import argparse
import collections
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_CEILING, Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
from genai_prices import types
from genai_prices.data import providers

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.billing.price_spec import PriceSpec, SizeSpec, TierSpec
from gateway.domain.price import NANOS_PER_USD, Price, PriceList, compute_cost_nanos
from gateway.domain.usage import Usage, UsageDetails
from gateway.parsing import parse_table

FILE = Path(__file__).resolve().parent.parent / "config" / "prices.toml"
SOURCE = f"genai-prices {version('genai-prices')}"
HEADER = """\
# Prices in US dollars per million tokens or characters, per picture and per second, in force on {date}.
#
# Written by scripts/update_prices.py from {source} (MIT License, Copyright (c) Pydantic Services Inc.);
# its docstring says how to renew the list. Do not edit: a [[price]] in gateway.toml is asked before anything here,
# and what is in neither has no price.
#
# A model may be a glob; an exact name wins over it, and the longest glob over others. A price with a provider is for
# channels of that provider, one without for every channel. Tiers are for the whole of a request whose prompt is longer.
# Tokens of text, images, audio and video have rates of their own where the maker has them, and so have searches, calls
# and the service tiers that an answer names. Where a price changes with the hour it is the highest of the day. Changes
# already known: {changes}.
# Bedrock's names stand for every region, except those that begin with "global."; a global one that is not here costs as
# in a region. Videos are from the vendors' own pages, which the script names: a second of what is made where no size is
# named, and then of sizes; where one costs more or less in a longer video or with a picture to start from, it is the
# most.
"""


@attrs.frozen
class Film:
    """What a second costs of some models' videos, in dollars.

    Args:
        models: their names or globs, with spaces between them.
        usd: of the size that is made where nobody names one, and of every size that is not in ``sizes``.
        sizes: by globs of sizes, with spaces between them; the first that matches counts.
    """

    models: str
    usd: str | Decimal
    sizes: Mapping[str, str | Decimal] = attrs.field(factory=dict)


@attrs.frozen
class Studio:
    """The videos of one vendor, for its own channels: others sell models of the same names at other prices."""

    slug: str
    title: str
    films: tuple[Film, ...]


def find_highest_second(*videos: tuple[str, int]) -> Decimal:
    """The highest cost of a second, rounded up, where each is sold as a whole: its dollars and its seconds."""
    return max((Decimal(usd) / seconds).quantize(Decimal("1e-9"), ROUND_CEILING) for usd, seconds in videos)


_480P = "*480* 624x624"
_720P = "*720* 960x960 *832*"
_1080P = "*1080*"
_4K = "*2160*"
_SORA = (Film("sora-2*", "0.1"), Film("sora-2-pro*", "0.3", {"*1792*": "0.5"}))
STUDIOS = (
    # openai.com/api/pricing, "Sora Video API". The day: developers.openai.com/api/docs/deprecations.
    Studio("openai", "OpenAI's videos: the last prices, for they ended on 2026-09-24", _SORA),
    # azure.microsoft.com/pricing/details/cognitive-services/openai-service has OpenAI's prices.
    Studio("azure_openai", "Azure OpenAI's videos", _SORA),
    # ai.google.dev/gemini-api/docs/pricing, "Veo 3.1": always with sound. The day: .../docs/deprecations.
    Studio(
        "gemini",
        "Google Gemini's videos: the last prices, for Veo 3.1 ended on 2026-10-22",
        (
            Film("veo-3.1-generate-preview", "0.4", {_4K: "0.6"}),
            Film("veo-3.1-fast-generate-preview", "0.1", {_1080P: "0.12", _4K: "0.3"}),
            Film("veo-3.1-lite-generate-preview", "0.05", {_1080P: "0.08"}),
        ),
    ),
    # cloud.google.com/vertex-ai/generative-ai/pricing, "Veo": with sound, which is asked for.
    Studio(
        "vertex",
        "Vertex AI's videos",
        (
            Film("veo-3.1-generate-001", "0.4", {_4K: "0.6"}),
            Film("veo-3.1-fast-generate-001", "0.1", {_1080P: "0.12", _4K: "0.3"}),
            Film("veo-3.1-lite-generate-001", "0.05", {_1080P: "0.08"}),
        ),
    ),
    # kling.ai/document-api/pricing/base/video.md, without sound where a model can do without: so it is asked.
    Studio(
        "kling",
        "Kling's videos",
        (
            Film("kling-3.0 kling-v3 kling-3.0-omni", "0.084", {_1080P: "0.112", _4K: "0.42"}),
            Film("kling-3.0-turbo", "0.112", {_1080P: "0.14"}),
            Film("kling-o1", "0.084", {_1080P: "0.112"}),
            Film("kling-2.6 kling-v2-6 kling-v2-5-turbo", "0.042", {_1080P: "0.07"}),
        ),
    ),
    # platform.minimax.io/docs/guides/pricing-paygo.md. It has no price of T2V-01 and I2V-01.
    Studio(
        "minimax",
        "MiniMax's videos",
        (
            Film("MiniMax-H3", "0.08", {"*1440*": "0.13"}),
            Film("MiniMax-H3-Max", "0.08", {"*480*": "0.05"}),
            Film(
                "MiniMax-Hailuo-2.3 MiniMax-Hailuo-02",
                find_highest_second(("0.28", 6), ("0.56", 10)),
                {_1080P: find_highest_second(("0.49", 6))},
            ),
            Film(
                "MiniMax-Hailuo-2.3-Fast",
                find_highest_second(("0.19", 6), ("0.32", 10)),
                {_1080P: find_highest_second(("0.33", 6))},
            ),
        ),
    ),
    # docs.dev.runwayml.com/guides/pricing, a cent a credit; with sound, which is made where nothing is said of it. The
    # last one takes 10 credits a second and another for a picture; its shortest video has three seconds.
    Studio(
        "runway",
        "Runway's videos",
        (
            Film("gen4.5", "0.12"),
            Film("gen4_turbo", "0.05"),
            Film("veo3.1", "0.4"),
            Film("veo3.1_fast", "0.15"),
            Film("seedance2", "0.36", {"*3840*": "1.5", f"{_1080P} 1440x1440 *1664* 2206x946": "0.4"}),
            Film("seedance2_fast", "0.29"),
            Film("seedance2_mini", "0.16"),
            Film("gemini_omni_flash", find_highest_second(("0.31", 3))),
        ),
    ),
    # help.aliyun.com/zh/model-studio/model-pricing: Singapore's, told there in yuan, 7.33924 a dollar (as
    # alibabacloud.com/help/en/model-studio/text-to-video-api-reference tells two of them in dollars); with sound, which
    # is made where nothing is said of it. Beijing's are lower; 1080P of wan2.2-i2v-flash is sold there alone.
    Studio(
        "dashscope",
        "Alibaba Cloud Model Studio's videos, in Singapore",
        (
            Film("wan2.7-t2v* wan2.7-i2v* wan2.6-t2v* wan2.6-i2v*", "0.15", {_720P: "0.1"}),
            Film("wan2.6-i2v-flash*", "0.075", {_720P: "0.05"}),
            Film("wan2.5-t2v* wan2.5-i2v*", "0.15", {_480P: "0.05", _720P: "0.1"}),
            Film("wan2.2-t2v-plus wan2.2-i2v-plus", "0.1", {_480P: "0.02"}),
            Film("wan2.2-i2v-flash", "0.036", {_480P: "0.015", f"{_1080P} 1440x1440 *1248*": "0.06881"}),
            Film("wan*2.1-t2v-turbo wan*2.1-i2v-turbo", "0.036"),
            Film("wan*2.1-t2v-plus wan*2.1-i2v-plus", "0.1"),
        ),
    ),
    # fal.ai/models/…/llms.txt of each, with sound, which is made where nothing is said of it.
    Studio(
        "fal_queue",
        "fal's videos",
        (
            Film("fal-ai/veo3.1", "0.4", {_4K: "0.6"}),
            Film("fal-ai/veo3.1/lite", "0.05", {_1080P: "0.08"}),
            Film("fal-ai/veo3", "0.4"),
            Film("fal-ai/veo3/fast", "0.15"),
            Film("fal-ai/luma-dream-machine/ray-2-flash", "0.04", {"*540*": "0.04", _1080P: "0.16", "*720*": "0.08"}),
        ),
    ),
)


@attrs.frozen
class Gallery:
    """The pictures of one vendor that it sells by the piece: its models, and the dollars of each."""

    slug: str
    title: str
    pieces: Mapping[str, str]


GALLERIES = (
    # docs.bfl.ai/quick_start/pricing, a cent a credit. FLUX.2 is sold by the megapixel, which no price here expresses.
    Gallery(
        "bfl",
        "Black Forest Labs' pictures",
        {"flux-kontext-pro": "0.04", "flux-kontext-max": "0.08", "flux-pro-1.1": "0.04", "flux-pro-1.1-ultra": "0.06"},
    ),
    # docs.agents.lumalabs.ai/guides/pricing, an edit of one picture: the most that is asked here.
    Gallery("luma", "Luma's pictures", {"uni-1": "0.0434"}),
)


@attrs.frozen
class Shop:
    """What one vendor sells that the package lacks, or knows less of."""

    title: str
    sections: tuple[PriceSpec, ...]


def _speak(name: str, text: tuple[str, str], audio: tuple[str, str]) -> PriceSpec:
    """The price of a chat model that hears and speaks, in dollars per million tokens in and out."""
    rates = (*map(Decimal, text), *map(Decimal, audio))
    return PriceSpec(
        name,
        input_usd_per_million=rates[0],
        output_usd_per_million=rates[1],
        audio_input_usd_per_million=rates[2],
        audio_output_usd_per_million=rates[3],
    )


SHOPS = (
    # platform.openai.com/docs/pricing, "Audio tokens"; the package has their text only.
    Shop(
        "OpenAI's first chat models with audio",
        (
            _speak("gpt-4o-audio-preview*", ("2.5", "10"), ("40", "80")),
            _speak("gpt-4o-mini-audio*", ("0.15", "0.6"), ("10", "20")),
        ),
    ),
    # platform.openai.com/docs/guides/moderation: "free to use".
    Shop(
        "OpenAI's moderation, which costs nothing",
        tuple(PriceSpec(name, "openai", free=True) for name in ("omni-moderation-*", "text-moderation-*")),
    ),
    # cohere.com/pricing, "Rerank": two dollars a thousand searches, of up to 100 documents each.
    Shop(
        "Cohere's rerank, by the search",
        (
            PriceSpec("rerank-v4.0-pro", usd_per_search=Decimal("0.0025")),
            *(
                PriceSpec(name, usd_per_search=Decimal("0.002"))
                for name in ("rerank-v4.0-fast", "rerank-v3.5", "rerank-english-v3.0", "rerank-multilingual-v3.0")
            ),
        ),
    ),
)


@attrs.frozen
class Source:
    """One vendor's list.

    Args:
        vendor: the package's word for it.
        slug: this gateway's.
        title: the heading in the file.
        resells: it sells the models of others, or at another price than the vendor: only for its own channels.
        skip: names that are not the vendor's own spelling, that it shut down, or that this gateway cannot speak to.
        cloud: its names are parts of longer ones, with a region before and a version behind them.
    """

    vendor: str
    slug: str
    title: str
    resells: bool = False
    skip: str = ""
    cloud: bool = False


_NOT_CHAT = r".*(sonic|titan-embed).*"
SOURCES = (
    # Versions written with dashes; base models of 2022; aliases of chat sites; open weights that anybody serves.
    Source(
        "openai",
        "openai",
        "OpenAI",
        skip=r"gpt-\d-\d(-.*)?|gpt-35.*|gpt-3\.5(-turbo)?-(0301|0613|16k.*)|gpt-3\.5-0301|gpt-4-32k.*"
        r"|gpt-4-(1106-)?vision-preview|gpt-4\.5-preview.*|o1-(preview|mini).*|o\d-mini-high|gpt-4o:extended|gpt-oss.*"
        r"|(text-)?(ada|babbage|curie|davinci)(-\d+)?|moderation|.*-moderation-.*|gpt-live.*"
        r"|gpt-4o(-mini)?-audio.*",
    ),
    # Versions written with dots, before the family's name, or as clouds write them.
    Source("anthropic", "anthropic", "Anthropic", skip=r".*[.@].*|claude-[245].*|claude-v.*|claude-sonnet-3.*"),
    # Models of the cloud only.
    Source(
        "google",
        "gemini",
        "Google Gemini",
        skip=r"(anthropic/)?claude-.*|gemini-1\..*|gemini-(flash|pro)-1\..*|gemini-pro|gemma-2-.*|.*-maas|.*live.*|.*-native-audio.*",
    ),
    Source("x-ai", "xai", "xAI", skip=r"x-ai/.*|.*voice.*"),
    # Spellings of resellers and of those who run the open weights themselves.
    Source(
        "mistral",
        "mistral",
        "Mistral",
        skip=r".*:free|mistral-(7b|nemo)|mixtral-.*|mistral-small-.*instruct.*|ministral-[38]b|pixtral-12b",
    ),
    Source("deepseek", "deepseek", "DeepSeek", skip=r"deepseek-(r1|v3).*"),
    Source("moonshotai", "moonshot", "Moonshot AI"),
    Source("zai", "zai", "Z.ai (Zhipu outside China)", skip=".*[A-Z].*"),
    Source("zhipuai", "zhipu", "Zhipu (in China, converted from CNY)", resells=True, skip=".*[A-Z].*"),
    Source("cohere", "cohere", "Cohere", skip="command"),
    Source(
        "azure",
        "azure_openai",
        "Azure, where it differs from OpenAI",
        resells=True,
        skip=r".*:free|(text-)?(ada|babbage|curie|davinci)(-\d+)?|wizardlm.*|o1-(preview|mini).*",
    ),
    Source(
        "groq",
        "groq",
        "Groq",
        resells=True,
        skip=r"llama2.*|llama3-.*|llama-3\.1-(70b|405b).*|llama-3\.2-.*|llama-3\.3-70b-specdec|llama-guard-3.*|gemma.*"
        r"|mixtral.*|mistral-saba.*|deepseek-r1-.*",
    ),
    # What it served in 2023 and 2024.
    Source(
        "together",
        "together",
        "Together AI",
        resells=True,
        skip=r"(Austism|Gryphe|Nexusflow|NousResearch|Open-Orca|Undi95|WizardLM|codellama|garage-bAInd|lmsys|microsoft"
        r"|openchat|snorkelai|teknium|upstage|zero-one-ai|togethercomputer|allenai)/.*|Qwen/Qwen1\.5.*|google/gemma-[27]b.*"
        r"|meta-llama/Llama-[23]-.*|mistralai/.*-v0\.1|deepseek-ai/deepseek-coder.*",
    ),
    Source("fireworks", "fireworks", "Fireworks", resells=True),
    Source("openrouter", "openrouter", "OpenRouter", resells=True),
    # Models that neither Converse nor the endpoints in others' formats serve.
    Source("aws", "bedrock_converse", "Amazon Bedrock, Converse", resells=True, skip=_NOT_CHAT, cloud=True),
    Source("aws", "bedrock", "Amazon Bedrock, in others' formats", resells=True, skip=_NOT_CHAT, cloud=True),
)

# Regular expressions of the package become globs. Its dates are all of this century.
PATTERN = re.compile(
    r"\^(?P<stem>(?:[\w/-]|\\\.)+?)(?P<tail>-\\d\{4\}-\\d\{2\}-\\d\{2\}\$|(?:-|\[-@\])\\d\{8\}\$|-\\d)"
)
TAILS = collections.defaultdict(lambda: "-20*", {r"-\d": "-[0-9]*"})
EXAMPLES = ("20260102", "2026-01-02", "1", "latest", "-latest", "-20260102", "-preview")

TOKENS = {"input_mtok", "output_mtok"}
HOURS = ("audio_hours", "input_audio_hours")
CHARACTERS = "input_mchars"
MODAL = {  # the package's keys of tokens that are no text: our rates, and how the package counts them
    "input_audio_mtok": ("audio_input_usd_per_million", "input_audio_tokens", "audio_input"),
    "cache_audio_read_mtok": ("cached_audio_input_usd_per_million", "cache_audio_read_tokens", "cached_audio"),
    "output_audio_mtok": ("audio_output_usd_per_million", "output_audio_tokens", "audio_output"),
    "input_image_mtok": ("image_input_usd_per_million", "input_image_tokens", "image_input"),
    "cache_image_read_mtok": ("cached_image_input_usd_per_million", "cache_image_read_tokens", "cached_image"),
    "output_image_mtok": ("image_output_usd_per_million", "output_image_tokens", "image_output"),
    "input_video_mtok": ("video_input_usd_per_million", "input_video_tokens", "video_input"),
    "output_video_mtok": ("video_output_usd_per_million", "output_video_tokens", "video_output"),
}
BESIDE = {  # tokens that are in neither the prompt nor the completion
    "output_reasoning_mtok": "reasoning_usd_per_million",
    "output_citation_mtok": "citation_usd_per_million",
}
COUNTED = {  # sold by the thousand
    "web_searches_kcount": "usd_per_search",
    "storage_searches_kcount": "usd_per_file_search",
    "requests_kcount": "usd_per_call",
}
KEPT = {
    *TOKENS,
    *HOURS,
    CHARACTERS,
    "cache_read_mtok",
    "cache_write_mtok",
    "cache_write_1h_mtok",
    *MODAL,
    *BESIDE,
    *COUNTED,
}
"""The package's keys that the list keeps."""
NOT_SERVED = {
    "input_document_kpages": "pages of documents: no endpoint here reads them",
    "input_annotated_document_kpages": "pages of documents: no endpoint here reads them",
    "input_text_messages_kcount": "messages of xAI's voice agents: no endpoint here takes them",
}
"""The package's keys that the list lacks, and why: what has one of them and nothing else is left out."""
TIER_WORDS = ("service_tier", "speed")
PLACED = re.compile(r"claude-(fable|mythos|(opus|sonnet|haiku)-(4-[6-9]|[5-9]))")
"""Anthropic's own models that cost a tenth more if inference stays in the United States: docs.claude.com, "Pricing"."""
ANSWERS = ("output_mtok", "output_image_mtok", "output_audio_mtok", "output_video_mtok")
SAMPLES = (
    *(
        Usage(prompt, 777, prompt // 3, written_tokens=prompt // 4, written_long_tokens=prompt // 9)
        for prompt in (1_000, 100_001, 128_001, 200_000, 200_001, 256_001, 272_001, 1_000_001)
    ),
    Usage(1_000, 777, 300),
    Usage(1_000),
    Usage(characters=4_096),
    Usage(1_000, 777, 300, details=UsageDetails(500, 100, 300, 200, 50, 400, 20, 30)),
    Usage(1_000, 777, details=UsageDetails(searches=3, file_searches=2)),
)


def read_names(clause: object) -> Iterator[str]:
    """The names and globs of a package's clause, in its order."""
    match clause:
        case types.ClauseEquals():
            yield clause.equals
        case types.ClauseStartsWith():
            yield f"{clause.starts_with}*"
        case types.ClauseRegex() if found := PATTERN.fullmatch(clause.regex):
            yield found["stem"].replace("\\.", ".") + TAILS[found["tail"]]
        case types.ClauseOr():
            for inner in clause.or_:
                yield from read_names(inner)
        case types.ClauseAnd():  # a beginning and what else must hold; the comparison says whether that was needed
            yield from (name for inner in clause.and_ for name in read_names(inner))


REGION = re.compile(r"(?:us-gov|us|eu|apac|au|jp|in|regional)\.")
OWNED = re.compile(r"(?:global\.)?[a-z0-9]+\.[a-z]")


def read_cloud_names(model: types.ModelInfo) -> Iterator[str]:
    """The names of a cloud's model without their region, but with ``global.``, whose price is another.

    A name that a clause only begins is a name, too: a look-up knows versions and dates behind it.
    """
    names = dict.fromkeys(
        REGION.sub("", text.removeprefix("/"), count=1) for text in (*_list_texts(model.match), model.id)
    )
    yield from (name for name in names if OWNED.match(name))


def _list_texts(clause: object) -> Iterator[str]:
    match clause:
        case types.ClauseContains() | types.ClauseStartsWith() | types.ClauseEquals() | types.ClauseEndsWith():
            yield from vars(clause).values()
        case types.ClauseOr():
            yield from (text for inner in clause.or_ for text in _list_texts(inner))


def find_prices(model: types.ModelInfo, day: date) -> types.ModelPrice:
    """The package's prices of a model on a day; the highest of the day where they change with the hour."""
    midnight = datetime.combine(day, time(), UTC)
    hours = (model.get_prices(midnight + timedelta(minutes=30 * half)) for half in range(48))
    return max(hours, key=lambda prices: (_base(prices.output_mtok), _base(prices.input_mtok)))


def find_changes(day: date) -> list[date]:
    """When prices change after a day, as far as the package knows."""
    prices = [model.prices for source in SOURCES for model in get_vendor(source.vendor).models]
    limits = [price.constraint for several in prices if isinstance(several, list) for price in several]
    starts = {limit.start_date for limit in limits if isinstance(limit, types.StartDateConstraint)}
    return sorted(start for start in starts if start > day)


def _base(price: Decimal | types.TieredPrices | None) -> Decimal:
    return price.base if isinstance(price, types.TieredPrices) else price or Decimal(0)


def find_answer(prices: types.ModelPrice) -> str:
    """The rate of an answer's tokens: of text, else the highest of what the answer is made of."""
    if prices.output_mtok is not None:
        return "output_mtok"
    return max(ANSWERS, key=lambda key: _base(getattr(prices, key)))


def read_section(name: str, prices: types.ModelPrice, factors: Mapping[str, Decimal] | None = None) -> PriceSpec:
    """The package's prices as a ``[[price]]``."""
    hour = next((_base(getattr(prices, key)) for key in HOURS if getattr(prices, key)), Decimal(0))
    fresh, cached = prices.input_mtok, prices.cache_read_mtok
    if fresh is None:  # what only hears has no rate of text
        fresh = prices.input_audio_mtok
    answer = getattr(prices, find_answer(prices))
    written, written_long = prices.cache_write_mtok, prices.cache_write_1h_mtok
    rates = (fresh, cached, answer, written, written_long)
    rare: dict[str, Any] = {
        ours: _base(getattr(prices, key)) for key, (ours, _, _) in MODAL.items() if getattr(prices, key) is not None
    }
    beside: dict[str, Any] = {ours: _base(getattr(prices, key)) or None for key, ours in BESIDE.items()}
    counted: dict[str, Any] = {ours: _base(getattr(prices, key)) / 1000 or None for key, ours in COUNTED.items()}
    return PriceSpec(
        name,
        input_usd_per_million=_base(fresh) or None,
        cached_input_usd_per_million=None if cached is None else _base(cached),
        output_usd_per_million=_base(answer) or None,
        usd_per_second=(hour / 3600).quantize(Decimal("1e-9"), ROUND_CEILING) or None,
        usd_per_million_characters=_base(getattr(prices, CHARACTERS)) or None,
        cache_write_usd_per_million=None if written is None else _base(written),
        cache_write_long_usd_per_million=None if written_long is None else _base(written_long),
        tiers=tuple(
            TierSpec(start, *(_tier(price, start) for price in rates))
            for start in sorted({tier.start for price in rates for tier in _tiers(price)})
        ),
        tiers_served=dict(factors or {}),
        free=not any(_base(value) for value in vars(prices).values()),
        **rare,
        **beside,
        **counted,
    )


def find_factors(model: types.ModelInfo, prices: types.ModelPrice, day: date) -> dict[str, Decimal]:
    """By which factor tokens cost more or less that a service tier has served; the highest where rates differ."""
    factors: dict[str, Decimal] = {}
    for variant in model.price_variants or ():
        names = [name.lower() for word, name in variant.when.items() if word in TIER_WORDS]
        begins = getattr(variant.constraint, "start_date", day)
        shares = [
            _base(getattr(variant.prices, key)) / _base(getattr(prices, key))
            for key in ("input_mtok", "output_mtok")
            if _base(getattr(variant.prices, key)) and _base(getattr(prices, key))
        ]
        if names and shares and begins <= day:
            factors[names[0]] = max(shares).quantize(Decimal("1e-6"), ROUND_CEILING)
    if PLACED.match(model.id):
        factors["us"] = Decimal("1.1")
    return factors


def _tiers(price: Decimal | types.TieredPrices | None) -> list[types.Tier]:
    return price.tiers if isinstance(price, types.TieredPrices) else []


def _tier(price: Decimal | types.TieredPrices | None, start: int) -> Decimal | None:
    """The price in the tier that starts there; None where it has none of its own."""
    return next((tier.price for tier in reversed(_tiers(price)) if tier.start <= start), None)


def collect(source: Source, day: date, left_out: collections.Counter[str]) -> Iterator[PriceSpec]:
    """The current models of a source, by name."""
    found: dict[str, PriceSpec] = {}
    for model in get_vendor(source.vendor).models:
        prices = find_prices(model, day)
        why = find_reason(model, prices)
        reported = read_cloud_names(model) if source.cloud else (*read_names(model.match), model.id)
        names = [name for name in dict.fromkeys(reported) if source.cloud or _is_meant(source, name, model)]
        good = [name for name in names if not why and not re.fullmatch(source.skip, name)]
        left_out[why or "another spelling, shut down, or not for this gateway"] += len(names) - len(good)
        stems = tuple(name[:-1] for name in good if name.endswith("*"))
        for name in good:
            if not any(name.startswith(stem) and name != f"{stem}*" for stem in stems):
                section = read_section(name, prices, find_factors(model, prices, day))
                found[name] = attrs.evolve(section, provider=source.slug if source.resells or section.free else None)
    for name in sorted(found):
        yield found[name]


def list_films(studio: Studio) -> Iterator[PriceSpec]:
    """The models of a vendor of videos, in its order."""
    for film in studio.films:
        reported = [(glob, Decimal(usd)) for globs, usd in film.sizes.items() for glob in globs.split()]
        sizes = tuple(SizeSpec(glob, usd) for glob, usd in reported)
        for model in film.models.split():
            yield PriceSpec(model, studio.slug, usd_per_second=Decimal(film.usd), sizes=sizes)


def find_reason(model: types.ModelInfo, prices: types.ModelPrice) -> str | None:
    """Why a model is left out; None where it is not."""
    reported = _find_reported_keys(prices)
    if model.deprecated:
        return "deprecated"
    return "sold by the page or the message" if reported and not reported & KEPT else None


def _find_reported_keys(prices: types.ModelPrice) -> set[str]:
    return {key for key, value in vars(prices).items() if value is not None}


def _is_meant(source: Source, name: str, model: types.ModelInfo) -> bool:
    """Whether the package, too, means this model by the name: the first of its models that matches is the one."""
    return name.endswith("*") or get_vendor(source.vendor).find_model(name) is model


def get_vendor(name: str) -> types.Provider:
    """A vendor of the package."""
    return next(provider for provider in providers if provider.id == name)


def build(day: date, left_out: collections.Counter[str]) -> Mapping[str, list[PriceSpec]]:
    """Every table of the file under its heading."""
    tables: dict[str, list[PriceSpec]] = {}
    own: list[PriceSpec] = []
    for source in SOURCES:
        sections = list(collect(source, day, left_out))
        if source.resells and not source.cloud:  # what a region costs more would else stand for every region
            prices = PriceList(section.price() for section in own)
            sections = [section for section in sections if not _says_the_same(prices, section)]
        own += sections
        tables[source.title] = sections
    for studio in STUDIOS:
        tables[studio.title] = list(list_films(studio))
        own += tables[studio.title]
    for gallery in GALLERIES:
        pieces = gallery.pieces.items()
        tables[gallery.title] = [PriceSpec(name, gallery.slug, usd_per_image=Decimal(usd)) for name, usd in pieces]
        own += tables[gallery.title]
    for shop in SHOPS:
        tables[shop.title] = list(shop.sections)
        own += shop.sections
    names = collections.Counter((section.model, section.provider) for section in own)
    if twice := [name for (name, _), count in names.items() if count > 1]:
        raise SystemExit(f"Sold by several vendors; one of them resells: {', '.join(twice)}")
    return tables


def _says_the_same(prices: PriceList, section: PriceSpec) -> bool:
    general = prices.find(section.model)
    return general is not None and attrs.evolve(section.price(), provider=None, model=general.model) == general


def write_file(tables: Mapping[str, Iterable[PriceSpec]], day: date) -> str:
    """The file: a line for each model."""
    changes = ", ".join(map(str, find_changes(day))) or "none"
    lines = [HEADER.format(date=day, source=SOURCE, changes=changes), "price = ["]
    for title, sections in tables.items():
        lines += [f"  # {title}", *(f"  {_write_table(section)}," for section in sections)]
    return "\n".join([*lines, "]", ""])


def _write_table(section: PriceSpec | TierSpec | SizeSpec) -> str:
    fields = attrs.fields(type(section))
    reported = {
        field.name: value for field in fields if (value := getattr(section, field.name)) not in (field.default, {})
    }
    return f"{{ {', '.join(f'{key} = {_write_value(value)}' for key, value in reported.items())} }}"


def _write_value(value: object) -> str:
    if isinstance(value, tuple):
        return "[{}]".format(", ".join(map(_write_table, value)))
    if isinstance(value, dict):
        return "{{ {} }}".format(", ".join(f"{name} = {_write_value(factor)}" for name, factor in value.items()))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return str(value) if isinstance(value, int) else f'"{value}"'


def find_disagreements(prices: PriceList, day: date) -> Iterator[str]:
    """Names for which ``prices`` has another price than the package, or none without a reason."""
    for source in SOURCES:
        vendor = get_vendor(source.vendor)
        agreed: set[tuple[str, Price]] = set()
        for name, example in _list_cloud_examples(vendor) if source.cloud else _list_examples(vendor):
            model, ours = vendor.find_model(example), prices.find(example, source.slug)
            if (
                model is None
                or (source.cloud and re.fullmatch(source.skip, name))
                or (ours and (model.id, ours) in agreed)
            ):
                continue
            theirs = find_prices(model, day)
            if ours is None:
                skipped = re.fullmatch(source.skip, name) or re.fullmatch(source.skip, example)
                if not skipped and not find_reason(model, theirs):
                    yield f"{source.vendor}: {example} has no price"
            elif any(_differ(theirs, ours, sample) for sample in SAMPLES):
                yield f"{source.vendor}: {example} is {theirs} there, {ours} here"
            else:
                agreed.add((model.id, ours))


def _list_examples(vendor: types.Provider) -> Iterator[tuple[str, str]]:
    """Every name and glob of a vendor, with names that it means."""
    for model in vendor.models:
        for name in (*read_names(model.match), model.id):
            stem = name.removesuffix("20*").removesuffix("[0-9]*").removesuffix("*")
            yield name, stem
            yield from ((name, stem + more) for more in EXAMPLES if stem != name)


def _list_cloud_examples(vendor: types.Provider) -> Iterator[tuple[str, str]]:
    """Every name of a cloud's: as it is, and in a region."""
    for model in vendor.models:
        for name in read_cloud_names(model):
            examples = (name,) if name.startswith("global.") else (name, f"us.{name}")
            yield from ((name, example) for example in examples if vendor.find_model(example) is model)


def _differ(theirs: types.ModelPrice, ours: Price, usage: Usage) -> bool:
    if theirs.cache_write_1h_mtok is None:  # who has no price for it does not sell it
        usage = attrs.evolve(usage, written_long_tokens=0)
    counts = {
        "input_tokens": usage.prompt_tokens,
        "cache_read_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.written_tokens,
        "cache_write_1h_tokens": usage.written_long_tokens,
        "output_tokens": usage.completion_tokens,
    }
    reported = _find_reported_keys(theirs)
    rare = usage.details or UsageDetails()
    parts: dict[str, Any] = {
        field: getattr(rare, field) if key in reported else 0 for key, (_, _, field) in MODAL.items()
    }
    # The cached part of a modality that has no such rate is fresh there, and as text here.
    parts["cached_audio"] = min(parts["cached_audio"], parts["audio_input"])
    parts["cached_image"] = min(parts["cached_image"], parts["image_input"])
    for fresh, cached in (("audio_input", "cached_audio"), ("image_input", "cached_image")):
        if parts[fresh] and not parts[cached]:
            counts["cache_read_tokens"] = 0
            usage = attrs.evolve(usage, cached_tokens=0)
    if usage.cached_tokens == 0:
        parts |= {"cached_audio": 0, "cached_image": 0}
    if find_answer(theirs) != "output_mtok":
        parts |= dict.fromkeys(("audio_output", "image_output", "video_output"), 0)
        field = next(field for key, (_, _, field) in MODAL.items() if key == find_answer(theirs))
        parts[field] = usage.completion_tokens
    counts |= {name: parts[field] for key, (_, name, field) in MODAL.items() if key in reported}
    seconds = 90 if reported & set(HOURS) else 0
    counts |= {"audio_seconds": seconds, "input_audio_seconds": seconds, "input_characters": usage.characters}
    searches = rare.searches if "web_searches_kcount" in reported else 0  # who has no price for them does not sell them
    file_searches = rare.file_searches if "storage_searches_kcount" in reported else 0
    counts |= {"web_searches": searches, "storage_searches": file_searches}
    exact = theirs.calc_price(types.Usage(**counts))["total_price"] * NANOS_PER_USD
    rare = attrs.evolve(rare, searches=searches, file_searches=file_searches, **parts)
    cost = compute_cost_nanos(ours, attrs.evolve(usage, duration_ms=seconds * 1000, details=rare))
    return not 0 <= cost - exact < 1 + seconds  # the price of a second is itself rounded up


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the file would change")
    parser.add_argument("--date", type=date.fromisoformat, help="of the prices; default: today, or the file's")
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    old = options.file.read_text() if options.file.exists() else ""
    dated = re.search(r"in force on (\d{4}-\d\d-\d\d)\.", old)
    day = options.date or (date.fromisoformat(dated[1]) if options.check and dated else datetime.now(UTC).date())
    left_out: collections.Counter[str] = collections.Counter()
    tables = build(day, left_out)
    new = write_file(tables, day)
    raw = tomllib.loads(new, parse_float=Decimal)["price"]
    prices = PriceList([parse_table(table, PriceSpec).price() for table in raw])
    if problems := list(find_disagreements(prices, day)):
        sys.exit("\n".join(problems))
    if options.check:
        sys.exit(None if new == old else f"{options.file} is not what this writes for {day} from {SOURCE}")
    options.file.write_text(new)
    print(f"{options.file}: {len(prices)} prices of {day} from {SOURCE}")
    for title, sections in tables.items():
        print(f"{len(sections):5} {title}")
    for why, count in left_out.most_common():
        print(f"{count:5} names left out: {why}")


if __name__ == "__main__":
    main()
