"""The system text that Claude Code writes only for Anthropic. It is not passed on to other providers."""

from typing import Any

from gateway.formats.wire.fields import Body

BILLING_LINE = "x-anthropic-billing-header:"
"""Prefix of the text. It differs between sessions and would defeat the prompt cache of any other provider."""


def drop_billing_line(body: Body) -> None:
    """Drop Claude Code's billing line from the system text of ``body``, a request in the Anthropic API format."""
    system = body.get("system")
    if isinstance(system, list) and any(map(_is_billing_line, system)):
        body["system"] = [block for block in system if not _is_billing_line(block)]


def _is_billing_line(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(BILLING_LINE)
