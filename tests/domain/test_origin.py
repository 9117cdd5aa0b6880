"""Origins of web pages."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.origin import is_origin, parse_origins
from tests.support.table_rows import table_rows

GOOD = (
    "*", "https://app.example.com", "http://localhost:5173", "http://127.0.0.1:3000", "http://[::1]:8080",
    "https://xn--bcher-kva.example", "tauri://localhost", "chrome-extension://abcdefghijklmnop", "HTTPS://App.Example.com",
)  # fmt: skip
BAD = (
    "", "null", "app.example.com", "https://", "https://app.example.com/", "https://app.example.com/path",
    "https://*.example.com", "https://a@example.com", "https://app.example.com?x", "https://app.example.com#x",
    "https://app.example.com:0", "https://app.example.com:65536", "https://app.example.com:", "https://a b",
    "https://bücher.example", "https://a\n", "https://a,https://b", "//app.example.com", "**",
)  # fmt: skip


@table_rows("text", GOOD)
def test_what_a_browser_writes_is_an_origin(text: str) -> None:
    assert is_origin(text)


@table_rows("text", BAD)
def test_what_no_browser_writes_is_none(text: str) -> None:
    assert not is_origin(text)


def test_origins_are_compared_as_browsers_write_them() -> None:
    reported = [
        "HTTPS://App.Example.com:443",
        "http://a:80",
        "http://a:443",
        "https://[::1]:443",
        "https://b:8443",
        "*",
    ]
    assert parse_origins(reported) == {
        "https://app.example.com", "http://a", "http://a:443", "https://[::1]", "https://b:8443", "*",
    }  # fmt: skip


@given(st.text(max_size=40))
def test_no_text_is_too_odd_to_be_looked_at(text: str) -> None:
    if is_origin(text):
        assert text.isascii()
        (origin,) = parse_origins([text])
        assert is_origin(origin)
        assert parse_origins([origin]) == {origin}
