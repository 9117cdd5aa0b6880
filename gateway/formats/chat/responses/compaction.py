"""Compaction of a conversation in the Responses API: the trigger item that requests it, and the summary item.

Types: ``CompactionTriggerItemParam`` (the last item of an input), ``CompactionSummaryItemParam`` and
``CompactResource``; developers.openai.com/api/docs/guides/context-management. If a channel's provider cannot compact,
the gateway asks the model for a summary. Its summary item has the plain text after a prefix, which every channel can
use later.
"""

from typing import Any

TRIGGER_KIND = "compaction_trigger"
COMPACTION_KINDS = ("compaction", "context_compaction")
"""Types of summary items; the second one is Codex's."""
PROMPT = (
    "Summarize this conversation. Your summary replaces everything above: you will go on with the task and see nothing "
    "but the summary, and perhaps the user's own messages. Write what the user wants and has decided, the instructions "
    "and limits that still hold, what has been done and found out (with the names of files, functions, commands and "
    "ids, and with exact values and error messages that still matter), what is unfinished, and the next step. Do not "
    "go on with the task now, call no tools, and write nothing but the summary."
)
"""The last message of a request for a summary."""
SUMMARY_PREFIX = "gateway:summary:"
"""The prefix of ``encrypted_content`` in the gateway's summary items."""
_HEADING = "Summary of the conversation before this point, written by the assistant:\n\n"

Item = dict[str, Any]


def asks_for_summary(items: Any) -> bool:
    """Return whether a request's input ends with a compaction trigger."""
    return isinstance(items, list) and bool(items) and items[-1].get("type") == TRIGGER_KIND


def build_content(summary: str) -> str:
    """Return the ``encrypted_content`` of a summary item."""
    return SUMMARY_PREFIX + summary


def is_summary(content: str) -> bool:
    """Return whether an ``encrypted_content`` is a summary written by the gateway."""
    return content.startswith(SUMMARY_PREFIX)


def read_summary(item: Item) -> str | None:
    """Return the gateway's summary in an item, with a heading for the model; None for any other item."""
    content = item.get("encrypted_content")
    if item.get("type") not in COMPACTION_KINDS or not isinstance(content, str) or not is_summary(content):
        return None
    return _HEADING + content.removeprefix(SUMMARY_PREFIX)


def replace_summary(item: Item) -> Item:
    """Return a summary item of the gateway as a user message, for providers; return any other item unchanged."""
    text = read_summary(item)
    return item if text is None else {"type": "message", "role": "user", "content": text}


def find_last_compaction(items: list[Item]) -> int:
    """Return the index of the last trigger that a summary follows; -1 if there is none.

    The summary replaces the items before that trigger.
    """
    trigger_indexes = (
        index
        for index in range(len(items) - 2, -1, -1)
        if items[index].get("type") == TRIGGER_KIND and items[index + 1].get("type") in COMPACTION_KINDS
    )
    return next(trigger_indexes, -1)


def is_user_message(item: Item) -> bool:
    """Return whether an item is a user message, which a compacted conversation keeps."""
    return item.get("type", "message") == "message" and item.get("role") == "user"
