"""Text that would like to be more than text. Whatever it sets off is heard (``chromium.py``) or seen."""

from collections.abc import Sequence

LONG = "W" * 240
RIGHT_TO_LEFT = "שלום \u202e<b>gnp.exe\u202c مرحبا"
EMOJI = "👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈"
BROKEN_LINES = 'one\r\nSet-Cookie: a=b\r\n\r\n<script>window.__hit="lines"</script>\x00\x1b[31m'

TAGS: Sequence[str] = (
    '<script>window.__hit="script"</script>',
    '"><img src=x onerror=window.__hit="img">',
    "'><svg/onload=window.__hit='svg'><iframe srcdoc='<script>top.__hit=1</script>'>",
    '</template></script></textarea></title><img src=x onerror=window.__hit="closed">',
    '" onmouseover=window.__hit="attr" onfocus=window.__hit="attr" autofocus x="',
    "javascript:window.__hit='url'",
    "{{7*7}}${7*7}#{7*7}<%=7*7%>{%print(7*7)%}",
    "<style>*{display:none}</style><base href=//evil.test/><meta http-equiv=refresh content=0;url=//evil.test>",
)
"""All of it printable: what most fields may contain."""
PRINTABLE: Sequence[str] = (*TAGS, LONG, "שלום <b>مرحبا</b>", "🦀 <b>🏳</b>")
ANY: Sequence[str] = (*PRINTABLE, RIGHT_TO_LEFT, EMOJI, BROKEN_LINES)
"""And what has signs in it that cannot be seen, where nobody minds them: prompts, answers, and faults of providers."""
ALL_AT_ONCE = "\n".join(ANY)
NAME = "a-name.of @just/sixty-four_characters.that-has.no-place-to-break"
"""As long as a name may be, with every sign that one may have."""
SEEN: Sequence[str] = (*TAGS, LONG[:40], "gnp.exe", "🦀", "שלום")
"""What must be read somewhere, as it was written."""
