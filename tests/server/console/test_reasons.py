"""Every reason of a dry run is in Chinese on a Chinese page; the reasons are read from the code that gives them."""

import ast
import html
import re
from collections.abc import Iterator, Mapping
from itertools import product

import pytest

from gateway.domain.capability import Capability
from gateway.domain.image import ImageRequest
from gateway.domain.route import CAUSES, RequestTraits, StepCondition
from gateway.server.admin.explanation import ExplainedStep, UnusedChannel
from gateway.server.console.language import CHINESE, ENGLISH
from gateway.server.console.reasons import _PLACEHOLDER, _read_patterns, format_reason, list_patterns
from gateway.server.console.rendering import build_environment
from scripts.extract_messages import ROOT
from tests.support.console_people import make_administrator
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway

EXPLAINED = ("server/admin/route_explain.py", "server/admin/step_explain.py")
"""All of their texts are reasons."""
REFUSING: Mapping[str, frozenset[str]] = {
    "domain/account.py": frozenset({"check_address"}),  # a dry run comes from nowhere
    "routing/router.py": frozenset({"_keep_channel", "_keep_original"}),  # responses and videos that there are
    "routing/model_catalog.py": frozenset(),
    "routing/pricing_policy.py": frozenset(),
    "routing/priced_fields.py": frozenset({"_check_target", "_check_betas"}),  # a dry run has no fields
    "routing/unsupported_operation.py": frozenset({"refuse_chat_model"}),
}
"""The modules whose errors a dry run gives, and their functions whose errors none gives."""
SAMPLE = "vendor/x-1"
_AS_THEY_ARE = re.compile(r"GET /v1/models|`[^`]*`|POST ")
"""Commands and endpoints."""
_ENGLISH_WORDS = re.compile(r"[A-Za-z]{2,} [A-Za-z]{2,}")
_SENTENCE = re.compile(r"[a-z)}\]] ")


def _expand(node: ast.expr, known: Mapping[str, list[ast.expr]]) -> list[str]:
    """The texts that an expression may have; ``known`` are the values of variables, and other parts are a sample."""
    texts = [SAMPLE]
    match node:
        case ast.Constant(value=str(text)):
            texts = [text]
        case ast.JoinedStr():
            texts = ["".join(parts) for parts in product(*(_expand(part, known) for part in node.values))]
        case ast.FormattedValue(value=ast.Name(id=name), conversion=conversion) if name in known and conversion < 0:
            texts = [text for value in known[name] for text in _expand(value, known)]
        case ast.IfExp():
            texts = _expand(node.body, known) + _expand(node.orelse, known)
        case ast.BoolOp():
            texts = [text for value in node.values for text in _expand(value, known)]
        case ast.Call(func=ast.Name(id="did_you_mean")):
            texts = [f"; did you mean '{SAMPLE}'?"]
        case ast.FormattedValue(value=ast.Call(func=ast.Attribute(attr="join", value=ast.Constant(value=" and ")))):
            texts = [" and ".join(CAUSES)]
    return texts


def _list_functions(path: str) -> Iterator[ast.FunctionDef]:
    tree = ast.parse((ROOT / "gateway" / path).read_text())
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _list_values(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
    return values


def list_refusals() -> Iterator[str]:
    """The messages of errors that routing gives for a request of which nothing but the model is known."""
    for path, others in REFUSING.items():
        for function in _list_functions(path):
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Name(id=name), args=[message, *_]) if name[0].isupper():
                        if function.name not in others and isinstance(message, ast.JoinedStr | ast.Constant):
                            yield from (text for text in _expand(message, _list_values(function)) if " " in text)


def list_explained() -> Iterator[str]:
    """The texts of several words in the modules that explain, without docstrings."""
    for path in EXPLAINED:
        tree = ast.parse((ROOT / "gateway" / path).read_text())
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        inner -= {id(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)}
        inner |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in inner:
                yield from (text for text in _expand(node, {}) if _SENTENCE.search(text))


def list_mismatches() -> Iterator[str]:
    """What each condition says of a request that does not meet the condition."""
    for wish in (True, False):
        condition = StepCondition(images=wish, tools=wish, stream=wish)
        yield from condition.list_mismatches(RequestTraits(0, images=not wish, tools=not wish, stream=not wish))
    yield from StepCondition(max_prompt_tokens=1).list_mismatches(RequestTraits(9))
    yield from StepCondition(min_prompt_tokens=9).list_mismatches(RequestTraits(1))


def list_reasons() -> list[str]:
    """Every reason of the code, with a sample for the parts that change."""
    problem = Capability(SAMPLE, edits=False).find_problem(ImageRequest("", sources=1), edit=True, fan_out=False)
    assert problem is not None
    others = ("disabled", f"The model '{SAMPLE}' cannot do this: {problem[1]}")
    return sorted({*list_explained(), *list_refusals(), *list_mismatches(), *others})


def test_the_lists_of_reasons_have_found_them() -> None:
    found = list_reasons()
    assert len(found) >= 50
    assert {
        "the request does not ask for a stream",
        "at its maximum number of requests per minute",
        "This API key has expired",
    } <= set(found)
    assert any("spending with this API key counts toward a limit" in text for text in found)


def show_in_chinese(reason: str) -> str:
    """What the result of a channel and the reason of a step are on a Chinese page."""
    environment = build_environment(CHINESE, version="", root="/console", static=str)
    parts = environment.get_template("parts.html").module
    module = environment.get_template("dry_run.html").module
    unused = UnusedChannel(channel="c", provider="custom", priority=0, weight=1, reason=reason)
    step = ExplainedStep(step=1, verdict="skipped", reason=reason, on=(), balance=None, reserved_usd=None, models=())
    shown = module.verdict(parts, unused) + module.show_steps(parts, [step])  # type: ignore[attr-defined]
    return html.unescape(re.sub(r"<[^>]*>", " ", shown))


@pytest.mark.parametrize("reason", list_reasons())
def test_every_reason_is_in_chinese_on_a_chinese_page(reason: str) -> None:
    translation = format_reason(CHINESE, reason)
    assert re.search(r"[\u4e00-\u9fff]", translation), reason
    shown = show_in_chinese(reason)
    assert shown.count(translation) == 2
    assert not _ENGLISH_WORDS.search(_AS_THEY_ARE.sub("", shown)), shown
    assert reason.count(SAMPLE) == translation.count(SAMPLE), "a part that changes is lost"


@pytest.mark.parametrize("reason", list_reasons())
def test_a_script_finds_the_same_translation(reason: str) -> None:
    """The patterns of a script, in Python's words: the same one is the first that matches."""
    patterns = [
        (re.compile(pattern.replace("(?<", "(?P<"), re.DOTALL), text) for pattern, text in list_patterns(CHINESE)
    ]
    first = next(text for pattern, text in patterns if pattern.search(reason))
    assert first == next(text for pattern, text in _read_patterns(CHINESE) if pattern.fullmatch(reason))


def test_nested_reasons_are_in_chinese_and_words_of_a_provider_are_not_touched() -> None:
    error = "cooling down after failures (The provider broke the connection)"
    insisting = f"{error}; a few requests are sent all the same, because no other channel serves the model"
    assert format_reason(CHINESE, insisting) == (
        "多次失败后冷却中（提供商中断了连接）；由于没有其他渠道提供此模型，仍会发送少量请求"  # noqa: RUF001
    )
    refused = "the earlier steps were ruled out for causes that this step does not list: budget and queue"
    assert format_reason(CHINESE, refused) == (
        "前面的步骤因“超出调用方预算、排队过长”被跳过，而此步骤未将其列为使用条件"  # noqa: RUF001
    )
    for words in ("Overloaded (529) and busy", "only for members", "", "{reason}"):
        assert format_reason(CHINESE, words) == words
    assert format_reason(ENGLISH, "disabled") == "disabled"
    assert list_patterns(ENGLISH) == []
    assert _PLACEHOLDER.findall(re.escape("a {b} c")) == ["b"]


async def test_the_page_of_a_model_and_of_a_route_has_reasons_in_chinese(gateway_with: StartGateway) -> None:
    config = {
        "channel": [channel("http://127.0.0.1:9/v1", name="one", models=["m"]),
                    channel("http://127.0.0.1:9/v1", name="two", models=["other"])],
        "route": [{"name": "fast", "step": [{"models": ["m"], "if": {"images": True}}, {"models": ["m"]}]}],
    }  # fmt: skip
    gateway = await gateway_with(config)
    ada = await make_administrator(gateway)
    async with ada.session:
        for path, wanted in (
            ("/models/m", "不提供此模型"),
            ("/models/fast", "请求没有图像"),
            ("/routes/fast", "请求没有图像"),
        ):
            cookies = {"console_language": CHINESE}
            async with ada.session.get(f"{gateway.url}/console{path}", cookies=cookies) as answer:
                page = await answer.text()
            assert wanted in page, path
            shown = re.sub(r"<[^>]*>", " ", page)
            assert not {"does not offer the model", "it has no images"} & {one.strip() for one in shown.split("  ")}
