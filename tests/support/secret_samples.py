"""Samples of what must not be kept. They are put together here: no service has ever given one out."""

from collections.abc import Mapping

_LETTERS = "aB3dE5gH7jK9mN2pQ4sT6vX8zY1cF0hJkLqRwUuViIoOaSgDbn"


def _word(length: int) -> str:
    return (_LETTERS * 4)[:length]


def _hex(length: int) -> str:
    return ("0a1b2c3d4e5f6789" * 5)[:length]


def _upper(length: int) -> str:
    return ("ABC2DEF3GHJ4KLM5" * 5)[:length]


_PEM_BODY = "\n".join([_word(64)] * 12)

SECRETS: Mapping[str, str] = {
    "openai": f"sk-proj-{_word(48)}",
    "openai_old": f"sk-{_word(48)}",
    "anthropic": f"sk-ant-api03-{_word(80)}AA",
    "openrouter": f"sk-or-v1-{_hex(64)}",
    "realtime": f"ek_{_word(32)}",
    "google": f"AIzaSy{_word(33)}",
    "google_token": f"ya29.a0{_word(60)}",
    "google_client": f"GOCSPX-{_word(28)}",
    "hugging_face": f"hf_{_word(34)}",
    "replicate": f"r8_{_word(37)}",
    "groq": f"gsk_{_word(52)}",
    "fireworks": f"fw_{_word(24)}",
    "together": f"tgp_v1_{_word(43)}",
    "jina": f"jina_{_word(40)}",
    "xai": f"xai-{_word(80)}",
    "perplexity": f"pplx-{_word(48)}",
    "nvidia": f"nvapi-{_word(64)}",
    "cerebras": f"csk-{_word(48)}",
    "tavily": f"tvly-dev-{_word(32)}",
    "bedrock": f"ABSK{_word(100)}=",
    "databricks": f"dapi{_hex(32)}",
    "aws": f"AKIA{_upper(16)}",
    "aws_session": f"ASIA{_upper(16)}",
    "alibaba": f"LTAI{_word(20)}",
    "tencent": f"AKID{_word(32)}",
    "digital_ocean": f"dop_v1_{_hex(64)}",
    "heroku": f"HRKU-{_word(36)}",
    "github": f"ghp_{_word(36)}",
    "github_app": f"ghs_{_word(36)}",
    "github_fine": f"github_pat_{_word(22)}_{_word(59)}",
    "gitlab": f"glpat-{_word(20)}",
    "npm": f"npm_{_word(36)}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{_word(70)}",
    "rubygems": f"rubygems_{_hex(48)}",
    "docker": f"dckr_pat_{_word(27)}",
    "atlassian": f"ATATT3xFfGF0{_word(120)}={_upper(8)}",
    "postman": f"PMAK-{_hex(24)}-{_hex(34)}",
    "sentry": f"sntrys_{_word(90)}",
    "new_relic": f"NRAK-{_upper(27)}",
    "grafana": f"glsa_{_word(32)}_{_hex(8)}",
    "vault": f"hvs.{_word(90)}",
    "terraform": f"{_word(14)}.atlasv1.{_word(67)}",
    "pulumi": f"pul-{_hex(40)}",
    "planetscale": f"pscale_tkn_{_word(43)}",
    "supabase": f"sbp_{_hex(40)}",
    "doppler": f"dp.pt.{_word(43)}",
    "age": f"AGE-SECRET-KEY-1{_upper(58)}",
    "one_password": f"ops_eyJ{_word(120)}",
    "slack": f"xoxb-{'1234567890' * 2}-{_word(24)}",
    "slack_app": f"xapp-1-A{_upper(10)}-1234567890123-{_hex(64)}",
    "telegram": f"110201543:AA{_word(33)}",
    "twilio": f"SK{_hex(32)}",
    "sendgrid": f"SG.{_word(22)}.{_word(43)}",
    "mailgun": f"key-{_hex(32)}",
    "mailchimp": f"{_hex(32)}-us20",
    "stripe": f"sk_live_{_word(24)}",
    "stripe_restricted": f"rk_test_{_word(24)}",
    "stripe_webhook": f"whsec_{_word(32)}",
    "shopify": f"shpat_{_hex(32)}",
    "square": f"sq0atp-{_word(22)}",
    "linear": f"lin_api_{_word(40)}",
    "notion": f"ntn_{_word(46)}",
    "airtable": f"pat{_word(14)}.{_hex(64)}",
    "figma": f"figd_{_word(40)}",
    "jwt": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{_word(43)}",
    "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{_PEM_BODY}\n-----END RSA PRIVATE KEY-----",
    "pem_openssh": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{_PEM_BODY}\n-----END OPENSSH PRIVATE KEY-----",
}
"""Whole secrets, by the service whose shape they have."""

WRAPPED_SECRETS: Mapping[str, tuple[str, str, str]] = {
    "bearer": ("Authorization: Bearer ", f"{_word(12)}/{_word(20)}", ""),
    "basic": ("authorization: basic ", f"{_word(30)}==", ""),
    "postgresql": ("postgresql://app:", _word(12), "@db.example.com/app"),
    "redis": ("redis://:", _word(10), "@cache:6379/0"),
    "azure_storage": ("AccountName=acme;AccountKey=", f"{_word(86)}==", ";EndpointSuffix=core.windows.net"),
    "aws_secret": ("aws_secret_access_key = ", f"{_word(20)}/{_word(19)}", " "),
    "slack_hook": ("https://hooks.slack.com/services/", f"T{_upper(8)}/B{_upper(8)}/{_word(24)}", ""),
    "discord_hook": ("https://discord.com/api/webhooks/", f"123456789012345678/{_word(68)}", ""),
    "password": ('{"password": "', f"tr0ub4dor{_word(6)}", '"}'),
    "setting": ("API_KEY=", f"{_word(24)}", ""),
}
"""Secrets that are recognized by what stands before them: this, the secret, and what follows."""

PERSONAL: Mapping[str, tuple[str, ...]] = {
    "cards": ("4111111111111111", "4111 1111 1111 1111", "5555-5555-5555-4444", "378282246310005", "6011111111111117"),
    "ibans": ("DE89370400440532013000", "GB82 WEST 1234 5698 7654 32", "NO9386011117947"),
    "mails": ("ann.example+tag@mail.example.com", "b@x.io", "jörg@müller.example"),
    "phones": ("+49 30 901820", "+14155552671", "+44 (20) 7946-0958"),
    "ips": ("192.0.2.17", "2001:db8::8a2e:370:7334", "fe80::1ff:fe23:4567:890a"),
}
"""By the switch that has them replaced."""

HARMLESS = (
    "The order 4111111111111112 has no check digit.",
    "DE89370400440532013001",
    "Version 1.2.3.4.5, and 10.0.300.1 at 12:34:56 or 01:02:03",
    "sk-short, eyJ, task-1234567890123456789, risk-free-and-very-long-words",
    "@app.get, user@host, a@b",
    "password: string, secret = None, Basic internationalization, the bearer of this letter",
    "https://example.com:8080/path?size=@2x",
    "+1 item, 2+2=4, 1700000000000, 123456789012345678",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "SKILL, ACCOUNT, patience, key-value, Basic, Bearer",
)
"""Texts in which nothing is replaced."""
