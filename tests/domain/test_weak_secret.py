"""Secrets that anybody would try first are known as such; those that were made at random never are."""

import re
import secrets
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.accounts import make_secret
from gateway.domain.weak_secret import is_weak
from tests.support.table_rows import table_rows

HOME = Path(__file__).parents[2]


@table_rows(
    "secret",
    [
        *("sk-test", "sk-test-test-test", "sk-changeme-changeme", "sk-1234567890123"),
        *(
            "sk-0000000000000000",
            "sk-xxxxxxxxxxxxxxxx",
            "sk-your-api-key-here",
            "sk-my-secret-key-1234",
            "sk-aaaaaaaaaaaaaaaa",
        ),
        *(
            "sk-local-gateway-key",
            "sk-placeholder-key",
            "sk-example-key-123",
            "sk-abcdefghijklmnop",
            "sk-dev-dev-dev-dev-1",
        ),
        *(
            "sk-qwertyuiopasdf",
            "sk-your-provider-key",
            "sk-proj-xxxxxxxxxxxx",
            "sk-not-a-secret-1",
            "changeme",
            "password123",
            "admin",
            "0" * 64,
        ),
        *("0123456789abcdef" * 4, "f" * 64, "01" * 32, ""),
    ],
)
def test_what_anybody_would_try_first_is_weak(secret: str) -> None:
    assert is_weak(secret)


@table_rows(
    "secret", ["sk-Kd93jfLs02kfmQ", "sk-correct-horse-battery", "9f2c4e8a7b1d3f60" * 4, "sk-acme-7391-2284-5567-1130x9"]
)
def test_what_somebody_made_up_is_not(secret: str) -> None:
    assert not is_weak(secret)


def test_what_is_made_at_random_never_is() -> None:
    for _ in range(2_000):
        assert not is_weak(make_secret())
        assert not is_weak(secrets.token_hex(32))
        assert not is_weak(secrets.token_urlsafe(32))


def test_every_key_that_our_own_pages_show_is_weak() -> None:
    openapi = HOME / "gateway/server/openapi"
    pages = [HOME / "README.md", openapi / "examples.py", openapi / "public.yaml", *HOME.glob("config/*.toml")]
    shown = [found for page in pages for found in re.findall(r"\bsk-[A-Za-z0-9._-]{4,}", page.read_text())]
    assert [secret for secret in shown if not is_weak(secret)] == []


@given(st.text("0123456789xtest-", max_size=253))
def test_long_ones_are_looked_through_once(secret: str) -> None:
    assert is_weak(secret) in {True, False}
    is_weak("1357913579" * 25 + secret)
