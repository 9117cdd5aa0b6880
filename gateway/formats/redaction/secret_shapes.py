"""The shapes of secrets: keys and tokens of services, private keys, bearer tokens, passwords in addresses.

Each shape has anchors, fixed texts that every secret of it contains. One search finds the anchors of all shapes; the
patterns are tried only there. The sources are the services' own documentation of their key prefixes, as GitHub's secret
scanning lists them (docs.github.com, "Supported secret scanning patterns").
"""

import re

from gateway.frozen import frozen

PRIVATE_KEY = "PRIVATE KEY"
"""Stands in the first line of every private key in PEM."""
_MAX_SECRET_CHARS = 16_384
_MAX_TOKEN_PART_CHARS = 4_096
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2})|(?<=\x1b\[\dm)|(?<=\x1b\[\d\dm))"
"""No word continues into a secret, but an escape sequence of JSON, of a URL or of a terminal may precede one."""


@frozen
class SecretShape:
    """A shape of secrets. Its pattern fails after few characters, or ``run`` says where a next try makes sense.

    Attributes:
        anchors: fixed texts, one of which the secret or its beginning contains.
        pattern: what begins at an anchor; with a group, only the group is secret.
        head: what must end at the anchor, and is part of the secret.
        lead: how many characters ``head`` takes at most.
        run: the characters after a failed try, among which no other try would succeed, except in the last ``max_run``
            of a longer run.
        max_run: how many of these characters the pattern matches at most.
    """

    anchors: tuple[str, ...]
    pattern: re.Pattern[str]
    head: re.Pattern[str] | None = None
    lead: int = 0
    run: re.Pattern[str] | None = None
    max_run: int = 0


def _make_shape(anchors: str, rest: str, head: str = "", lead: int = 0) -> SecretShape:
    """Return the shape of secrets that consist of an optional ``head``, one of ``anchors`` and ``rest``.

    ``anchors`` are texts, separated by spaces; ``head`` and ``rest`` are patterns. ``head`` has at most ``lead``
    characters.
    """
    names = tuple(anchors.split())
    start = ("" if head else _START) + f"(?:{'|'.join(map(re.escape, names))})"
    return SecretShape(names, re.compile(start + rest), re.compile(head + r"\Z") if head else None, lead)


_WORD = r"[A-Za-z0-9_-]"
_NAMED = (
    "password passwd passphrase secret api_key apikey api-key access_token auth_token access_key access-token "
    "auth-token access-key accesstoken authtoken refresh_token refresh-token refreshtoken bearer_token private_key "
    "private-key credential AccountKey"
)
_NAMED_ANCHORS = tuple(
    {form for name in _NAMED.split() for form in (name, name.upper(), name.title(), name.capitalize())}
    | {"apiKey", "ApiKey", "accessToken", "authToken", "accessKey", "refreshToken", "privateKey"}
    | {"AccessToken", "AuthToken", "AccessKey", "RefreshToken"}
)
_NAMED_FIELD = (
    r"(?:pass(?:word|wd|phrase)|secret(?:[_-]?key)?|api[_-]?key"
    r"|(?:access|auth|refresh|bearer|private)[_-]?(?:token|key)|credentials?)"
)

SHAPES: tuple[SecretShape, ...] = (
    # Models
    _make_shape("sk-", rf"{_WORD}{{16,}}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek, this gateway
    _make_shape("ek_ sess-", r"[A-Za-z0-9_-]{20,}"),
    _make_shape("AIza", rf"{_WORD}{{30,}}"),
    _make_shape("ya29. 1//0", rf"{_WORD}{{20,}}"),
    _make_shape("GOCSPX-", rf"{_WORD}{{20,}}"),
    _make_shape("hf_ r8_ gsk_ fw_ tgp_v1_ jina_", r"[A-Za-z0-9_-]{20,}"),
    _make_shape("xai- pplx- nvapi- csk- tvly-", rf"{_WORD}{{20,}}"),
    _make_shape("ABSK", r"[A-Za-z0-9+/=]{40,}"),
    _make_shape("dapi", r"[0-9a-f]{32}(?:-\d)?"),
    # Clouds
    _make_shape("AKIA ASIA AROA AIDA ABIA ACCA", r"[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _make_shape("LTAI", r"[A-Za-z0-9]{12,30}"),
    _make_shape("AKID", r"[A-Za-z0-9]{13,40}"),
    _make_shape("dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    _make_shape("HRKU-", rf"{_WORD}{{20,}}"),
    _make_shape("SharedAccessKey= sig= AccountKey=", r"([A-Za-z0-9+/%=]{40,})"),
    # Code
    _make_shape("ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}"),
    _make_shape("github_pat_", r"[A-Za-z0-9_]{22,}"),
    _make_shape("glpat- gldt- glrt- glcbt- glptt- glft- glagent- glsoat-", rf"[A-Za-z0-9_.-]{{19,}}{_WORD}"),
    _make_shape("npm_", r"[A-Za-z0-9]{36}"),
    _make_shape("pypi-", rf"{_WORD}{{50,}}"),
    _make_shape("rubygems_", r"[0-9a-f]{48}"),
    _make_shape("dckr_pat_ dckr_oat_", rf"{_WORD}{{20,}}"),
    _make_shape("ATATT3 ATBB", r"[A-Za-z0-9_=-]{24,}"),
    _make_shape("PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),
    _make_shape("sntrys_ sntryu_", r"[A-Za-z0-9+/=_-]{40,}"),
    _make_shape("NRAK-", r"[A-Z0-9]{27}"),
    _make_shape("glc_ glsa_", r"[A-Za-z0-9+/=_]{32,}"),
    _make_shape("hvs. hvb. hvr.", rf"{_WORD}{{24,}}"),
    _make_shape(".atlasv1.", rf"{_WORD}{{60,}}", r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}", lead=14),
    _make_shape("pul-", r"[0-9a-f]{40}"),
    _make_shape("pscale_tkn_ pscale_pw_ pscale_oauth_", rf"[A-Za-z0-9_.-]{{31,}}{_WORD}"),
    _make_shape("sbp_ sb_secret_", rf"{_WORD}{{20,}}"),
    _make_shape("dp.pt. dp.st. dp.ct. dp.sa.", rf"[A-Za-z0-9_.-]{{39,}}{_WORD}"),
    _make_shape("AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    _make_shape("ops_eyJ", rf"{_WORD}{{50,}}"),
    # Messages
    _make_shape("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xoxp- xapp-", r"[A-Za-z0-9-]{10,}"),
    _make_shape("hooks.slack.com/services/", r"([A-Za-z0-9/]{20,})"),
    _make_shape("discord.com/api/webhooks/ discordapp.com/api/webhooks/", rf"(\d+/{_WORD}{{60,}})"),
    _make_shape(":AA", rf"{_WORD}{{33}}", r"(?<!\d)\d{8,10}", lead=10),  # Telegram
    _make_shape("SK AC", r"[0-9a-f]{32}(?![A-Za-z0-9])"),  # Twilio
    _make_shape("SG.", rf"{_WORD}{{16,}}\.{_WORD}{{16,}}"),
    _make_shape("key-", r"[0-9a-f]{32}(?![A-Za-z0-9])"),
    _make_shape("-us", r"\d{1,2}(?![0-9])", r"(?<![A-Za-z0-9])[0-9a-f]{32}", lead=32),  # Mailchimp
    # Shops and offices
    _make_shape("sk_live_ sk_test_ rk_live_ rk_test_ whsec_", r"[A-Za-z0-9+/=]{16,}"),
    _make_shape("shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),
    _make_shape("sq0atp- sq0csp- EAAA", rf"{_WORD}{{22,}}"),
    _make_shape("lin_api_ lin_oauth_", r"[A-Za-z0-9]{32,}"),
    _make_shape("ntn_ secret_", r"[A-Za-z0-9]{40,}"),
    _make_shape("pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),  # Airtable
    _make_shape("figd_", rf"{_WORD}{{30,}}"),
    # Of no one service
    SecretShape(  # JWT (RFC 7519), JWE
        ("eyJ",),
        re.compile(
            _START + rf"eyJ{_WORD}{{8,{_MAX_TOKEN_PART_CHARS}}}\.{_WORD}{{8,{_MAX_TOKEN_PART_CHARS}}}"
            rf"(?:\.{_WORD}{{1,{_MAX_TOKEN_PART_CHARS}}}){{0,3}}"
        ),
        run=re.compile(f"{_WORD}*"),
        max_run=_MAX_TOKEN_PART_CHARS,
    ),
    _make_shape("Bearer bearer BEARER", r"[ \t]{1,4}([A-Za-z0-9._~+/=-]{16,})"),
    _make_shape("Basic basic BASIC", r"[ \t]{1,4}((?=[A-Za-z+/]{0,512}[0-9=])[A-Za-z0-9+/]{16,}={0,2})"),
    SecretShape(
        (PRIVATE_KEY,),
        re.compile(
            rf"PRIVATE KEY(?: BLOCK)?-----.{{0,{_MAX_SECRET_CHARS}}}?"
            r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            rf"|PRIVATE KEY(?: BLOCK)?-----.{{0,{_MAX_SECRET_CHARS}}}",
            re.DOTALL,
        ),
        head=re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}\Z"),
        lead=51,
    ),
    SecretShape(
        ("://",),
        re.compile(r"://[^\s:/@'\"\\]{0,128}:([^\s/'\"\\]{1,256})@"),
        head=re.compile(r"[A-Za-z0-9+.-]\Z"),
        lead=1,
    ),
    SecretShape(
        _NAMED_ANCHORS,
        re.compile(
            r"(?:password|passwd|secret|api[_-]?key|a(?:ccess|uth)[_-]?(?:token|key)|refresh[_-]?token|AccountKey)"
            r"[a-z_-]{0,12}\\?[\"']?\s{0,3}(?:[:=]|=>)\s{0,3}\\?[\"']?"
            r"((?=[^\s\"',;\\\d]{0,512}+\d)[^\s\"',;\\]{12,})",
            re.IGNORECASE,
        ),
    ),
    SecretShape(  # a field of JSON that is cut, or occurs twice
        _NAMED_ANCHORS,
        re.compile(
            _NAMED_FIELD + r"\"\s{0,3}:\s{0,3}\"(?!\[[a-z]+ \d+\](?:[\"\\]|\Z))((?:[^\"\\]|\\.){8,4096})",
            re.IGNORECASE | re.DOTALL,
        ),
    ),
)
"""All shapes that a redactor searches for. A match that begins in the middle of a word does not count."""
SECRET_NAME = re.compile(_NAMED_FIELD + r"\Z", re.IGNORECASE)
"""Matches the end of the name of a JSON field whose text is a secret."""
SECRET_NAME_IN_BYTES = re.compile(SECRET_NAME.pattern.encode())
"""The same for a name as UTF-8 in small letters."""
SECRET_NAME_ENDS = ("password", "passwd", "passphrase", "secret", "key", "token", "credential", "credentials")
"""In small letters, each match of ``SECRET_NAME`` ends with one of these."""
MIN_NAMED_SECRET_CHARS = 8
