"""The signature of Kling's requests: kling.ai/document-api, "Authentication"."""

import jwt

from gateway.domain.channel import Channel
from gateway.formats.videos.kling import MODELS
from gateway.providers.base import EndpointRequest
from gateway.providers.kling import KLING, sign_at
from tests.support.table_rows import table_rows


def test_models_offer_the_smallest_landscape_size_first() -> None:
    assert {next(iter(model.sizes)) for model in MODELS.values()} == {"1280x720"}
    assert MODELS["kling-3.0"].sizes["2160x2160"] == ("1:1", "4k")
    assert {model.seconds[0] for model in MODELS.values()} == {5}


def test_sign_at_signs_a_token_with_the_secret_of_the_access_key() -> None:
    secret = "s" * 32
    token = sign_at(f"access:{secret}", 1_700_000_000)["Authorization"].removeprefix("Bearer ")
    claims = jwt.decode(token, secret, algorithms=["HS256"], options={"verify_exp": False, "verify_nbf": False})
    assert claims == {"iss": "access", "exp": 1_700_001_800, "nbf": 1_699_999_995}
    assert jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT"}


@table_rows("key", ["api-key-kling-x", "access:", ":secret"])
def test_sign_at_sends_a_key_that_is_no_pair_as_it_is(key: str) -> None:
    assert sign_at(key, 1) == {"Authorization": f"Bearer {key}"}


def test_plan_signs_a_request_with_its_time() -> None:
    channel = Channel("up", "kling", "https://h.example", ("k",))
    (endpoint,) = KLING.endpoints
    request = EndpointRequest(b"{}", path="/text-to-video/kling-3.0")
    http_request = KLING.build_request(channel, endpoint, request, model="kling-3.0", key="a:" + "s" * 32, now_s=100)
    assert http_request.url == "https://h.example/text-to-video/kling-3.0"
    token = http_request.headers["Authorization"].removeprefix("Bearer ")
    assert jwt.decode(token, options={"verify_signature": False})["nbf"] == 95
