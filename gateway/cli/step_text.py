"""Steps of a route as one line of text: ``gpt-5-mini*9 gpt-5-nano channels=azure-* on=unavailable,budget``."""

import re
from typing import Any

import click

from gateway.wording import did_you_mean

_LISTS = ("channels", "on")
_SHADOW = ("shadow", "shadow_share", "shadow_max_running")
_NUMBERS = ("min_prompt_tokens", "max_prompt_tokens")
_FLAGS = ("images", "tools", "stream")
_WORD = "balance"
_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_WEIGHTED = re.compile(r"(?P<model>.+)\*(?P<weight>[0-9]{1,5})")


def parse_step(text: str) -> dict[str, Any]:
    """Parse a step to the JSON of the admin API, which checks names and causes. Raises ``click.BadParameter``."""
    step: dict[str, Any] = {"models": []}
    condition: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals:
            found = _WEIGHTED.fullmatch(word)
            share = {"model": found["model"], "weight": int(found["weight"])} if found else word
            step["models"].append(share)
        elif key in _LISTS:
            step[key] = [item for item in value.split(",") if item]
        elif key == _WORD:
            step[key] = value
        elif key in _SHADOW:
            step.setdefault("shadow", {}).update(_parse_shadow(key, value))
        elif key in _NUMBERS:
            condition[key] = _parse_number(key, value)
        elif key in _FLAGS:
            condition[key] = _parse_flag(key, value)
        else:
            known = (*_LISTS, _WORD, *_SHADOW, *_NUMBERS, *_FLAGS)
            hint = did_you_mean(key, known) or f"; expected one of {', '.join(known)}"
            raise click.BadParameter(f"unknown condition '{key}'{hint}", param_hint="--step")
    return step | ({"if": condition} if condition else {})


def format_step(step: dict[str, Any]) -> str:
    """Format a step of the admin API as ``parse_step`` reads it."""
    words = [one if isinstance(one, str) else f"{one['model']}*{one['weight']}" for one in step["models"]]
    words += [f"{key}={','.join(step[key])}" for key in _LISTS if key in step]
    words += [f"{_WORD}={step[_WORD]}"] if _WORD in step else []
    if "shadow" in step:
        shadow = step["shadow"]
        words += [f"shadow={','.join(shadow['models'])}", f"shadow_share={shadow['share']:g}"]
        words += [f"shadow_max_running={shadow['max_running']}"] if "max_running" in shadow else []
    for key, value in step.get("if", {}).items():
        words.append(f"{key}={'yes' if value is True else 'no' if value is False else value}")
    return " ".join(words)


def _parse_shadow(key: str, value: str) -> dict[str, Any]:
    if key == "shadow":
        return {"models": [item for item in value.split(",") if item]}
    if key == "shadow_max_running":
        return {"max_running": _parse_number(key, value)}
    try:
        return {"share": float(value)}
    except ValueError:
        raise click.BadParameter(f"{key}: expected a number, not '{value}'", param_hint="--step") from None


def _parse_number(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise click.BadParameter(f"{key}: expected a whole number, not '{value}'", param_hint="--step")
    return int(value)


def _parse_flag(key: str, value: str) -> bool:
    if value.lower() not in _WORDS:
        raise click.BadParameter(f"{key}: expected yes or no, not '{value}'", param_hint="--step")
    return _WORDS[value.lower()]
