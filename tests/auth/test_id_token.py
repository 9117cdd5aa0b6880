"""ID tokens: which keys and algorithms count."""

from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey

from gateway.auth import id_token
from tests.support.table_rows import table_rows

NOW_S = 1_800_000_000
EXPECTED = id_token.ExpectedToken("https://id.example.com", "gateway", "n", ("RS256", "ES256"))
CLAIMS = {"iss": EXPECTED.issuer, "aud": "gateway", "sub": "1", "iat": NOW_S, "exp": NOW_S + 60, "nonce": "n"}
RSA = RSAKey.generate_key(2048, {"kid": "r", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "e", "use": "sig"})


def publish(*keys: Any, **more: Any) -> KeySet:
    return id_token.read_keys({"keys": [{**key.as_dict(private=False), **more} for key in keys]})


@table_rows(("algorithm", "key"), [("RS256", RSA), ("ES256", EC)])
def test_a_token_of_each_kind_of_key_is_read(algorithm: str, key: Any) -> None:
    token = jwt.encode({"alg": algorithm, "kid": key.kid}, CLAIMS, key)
    assert id_token.check_id_token(token, publish(RSA, EC), EXPECTED, NOW_S) == CLAIMS


def test_a_token_names_its_key_unless_there_is_only_one() -> None:
    token = jwt.encode({"alg": "RS256"}, CLAIMS, RSA)
    assert id_token.check_id_token(token, publish(RSA), EXPECTED, NOW_S)["sub"] == "1"
    with pytest.raises(id_token.InvalidIdToken, match="several"):
        id_token.check_id_token(token, publish(RSA, EC), EXPECTED, NOW_S)


def test_an_unknown_key_is_told_apart_from_a_wrong_signature() -> None:
    other = RSAKey.generate_key(2048, {"kid": "r"})
    with pytest.raises(id_token.UnknownSigningKey):
        id_token.check_id_token(jwt.encode({"alg": "RS256", "kid": "x"}, CLAIMS, other), publish(RSA), EXPECTED, NOW_S)
    with pytest.raises(id_token.InvalidIdToken) as caught:
        id_token.check_id_token(jwt.encode({"alg": "RS256", "kid": "r"}, CLAIMS, other), publish(RSA), EXPECTED, NOW_S)
    assert not isinstance(caught.value, id_token.UnknownSigningKey)


def test_an_algorithm_that_the_provider_does_not_offer_is_refused() -> None:
    token = jwt.encode({"alg": "RS512", "kid": "r"}, CLAIMS, RSA, algorithms=["RS512"])
    with pytest.raises(id_token.InvalidIdToken, match="RS512"):
        id_token.check_id_token(token, publish(RSA), EXPECTED, NOW_S)


def test_a_token_is_good_a_minute_longer_than_it_says_and_not_more() -> None:
    token = jwt.encode({"alg": "RS256", "kid": "r"}, CLAIMS, RSA)
    assert id_token.check_id_token(token, publish(RSA), EXPECTED, NOW_S + 119)
    with pytest.raises(id_token.InvalidIdToken):
        id_token.check_id_token(token, publish(RSA), EXPECTED, NOW_S + 121)


def test_keys_that_sign_nothing_public_are_left_out() -> None:
    shared = OctKey.generate_key(256, {"kid": "o"})
    keys = id_token.read_keys({"keys": [shared.as_dict(private=True), RSA.as_dict(private=False), {"kty": "PQ"}, 7]})
    assert [key.kid for key in keys.keys] == ["r"]
    documents: list[dict[str, Any]] = [
        {}, {"keys": []}, {"keys": [{"kty": "RSA"}]}, {"keys": [EC.as_dict() | {"use": "enc"}]},
    ]  # fmt: skip
    for document in documents:
        with pytest.raises(id_token.InvalidIdToken):
            id_token.read_keys(document)


@table_rows(
    ("offered", "chosen"), [(["none", "HS256", "RS256", 7], ("RS256",)), (["none", "HS512"], ()), (None, ("RS256",))]
)
def test_none_and_shared_secrets_are_never_chosen(offered: Any, chosen: tuple[str, ...]) -> None:
    assert id_token.choose_algorithms(offered) == chosen
