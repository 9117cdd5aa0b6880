"""Parses and formats a step of a route: ``gpt-5-mini*9 gpt-5-nano channels=azure-* on=unavailable,budget``."""

import re
from typing import Any

import click

from gateway.wording import did_you_mean

_LIST_KEYS = ("channels", "on")
_SHADOW_KEYS = ("shadow", "shadow_share", "shadow_max_running")
_NUMBER_KEYS = ("min_prompt_tokens", "max_prompt_tokens")
_FLAG_KEYS = ("images", "tools", "stream")
_BALANCE_KEY = "balance"
_WAIT_KEY = "wait_s"
_FLAG_VALUES = {"yes": True, "true": True, "no": False, "false": False}
_WEIGHTED_PATTERN = re.compile(r"(?P<model>.+)\*(?P<weight>[0-9]{1,5})")


def parse_step(text: str) -> dict[str, Any]:
    """Parse a step to the JSON of the admin API, which checks names and causes. Raises ``click.BadParameter``."""
    step: dict[str, Any] = {"models": []}
    condition: dict[str, Any] = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals:
            match = _WEIGHTED_PATTERN.fullmatch(word)
            share = {"model": match["model"], "weight": int(match["weight"])} if match else word
            step["models"].append(share)
        elif key in _LIST_KEYS:
            step[key] = [item for item in value.split(",") if item]
        elif key == _BALANCE_KEY:
            step[key] = value
        elif key == _WAIT_KEY:
            step[key] = _parse_decimal(key, value)
        elif key in _SHADOW_KEYS:
            step.setdefault("shadow", {}).update(_parse_shadow(key, value))
        elif key in _NUMBER_KEYS:
            condition[key] = _parse_number(key, value)
        elif key in _FLAG_KEYS:
            condition[key] = _parse_flag(key, value)
        else:
            known_keys = (*_LIST_KEYS, _BALANCE_KEY, _WAIT_KEY, *_SHADOW_KEYS, *_NUMBER_KEYS, *_FLAG_KEYS)
            hint = did_you_mean(key, known_keys) or f"; expected one of {', '.join(known_keys)}"
            raise click.BadParameter(f"unknown condition '{key}'{hint}", param_hint="--step")
    return step | ({"if": condition} if condition else {})


def format_step(step: dict[str, Any]) -> str:
    """Format a step of the admin API as ``parse_step`` reads it."""
    words = [share if isinstance(share, str) else f"{share['model']}*{share['weight']}" for share in step["models"]]
    words += [f"{key}={','.join(step[key])}" for key in _LIST_KEYS if key in step]
    words += [f"{_BALANCE_KEY}={step[_BALANCE_KEY]}"] if _BALANCE_KEY in step else []
    words += [f"{_WAIT_KEY}={step[_WAIT_KEY]:g}"] if _WAIT_KEY in step else []
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
    return {"share": _parse_decimal(key, value)}


def _parse_decimal(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{key}: expected a number, not '{value}'", param_hint="--step") from None


def _parse_number(key: str, value: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise click.BadParameter(f"{key}: expected a whole number, not '{value}'", param_hint="--step")
    return int(value)


def _parse_flag(key: str, value: str) -> bool:
    if value.lower() not in _FLAG_VALUES:
        raise click.BadParameter(f"{key}: expected yes or no, not '{value}'", param_hint="--step")
    return _FLAG_VALUES[value.lower()]
