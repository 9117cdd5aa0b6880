"""The cookie that binds a sign-in to its browser: signed, short-lived, and good once."""

from gateway.auth.short_lived import MemoryValues
from gateway.auth.sign_in_flow import FLOW_S, FlowSigner

NOW_S = 1_800_000_000.0


def make(now: list[float] | None = None, values: MemoryValues | None = None) -> FlowSigner:
    times = now or [NOW_S]
    return FlowSigner(MemoryValues(lambda: times[0]) if values is None else values, lambda: times[0])


def test_a_flow_is_opened_by_whoever_signed_it_until_it_expires() -> None:
    now = [NOW_S]
    signer = make(now)
    flow, cookie = signer.begin("corp", "http://localhost/callback", "/console/")
    assert signer.open(cookie) == flow
    assert make().open(cookie) is None, "another key"
    now[0] += FLOW_S - 1
    assert signer.open(cookie) == flow
    now[0] += 1
    assert signer.open(cookie) is None


def test_a_cookie_that_was_changed_is_none_of_ours() -> None:
    signer = make()
    _, one = signer.begin("corp", "http://localhost/callback", "/console/")
    _, other = signer.begin("corp", "http://localhost/callback", "/console/keys")
    body, signature = one.split(".")
    wrong = ("", ".", body, f"{body}.", f".{signature}", f"{other.split('.')[0]}.{signature}", f"{one}x", "\udcff.é")
    assert [signer.open(cookie) for cookie in wrong] == [None] * len(wrong)


async def test_a_flow_ends_once() -> None:
    now = [NOW_S]
    values = MemoryValues(lambda: now[0])
    signer = make(now, values)
    flow, _ = signer.begin("corp", "http://localhost/callback", "/console/")
    assert await signer.use_up(flow)
    assert not await signer.use_up(flow)
    now[0] += FLOW_S + 1
    other, _ = signer.begin("corp", "http://localhost/callback", "/console/")
    assert await signer.use_up(other)
    assert len(values) == 1, "what has expired is forgotten"


def test_nonce_and_verifier_are_of_the_flow_and_not_in_its_cookie() -> None:
    signer = make()
    flow, cookie = signer.begin("corp", "http://localhost/callback", "/console/")
    other, _ = signer.begin("corp", "http://localhost/callback", "/console/")
    texts = {
        signer.derive_nonce(flow),
        signer.derive_verifier(flow),
        signer.derive_nonce(other),
        signer.derive_verifier(other),
    }
    assert len(texts) == 4
    assert all(len(text) == 43 and text not in cookie for text in texts)
