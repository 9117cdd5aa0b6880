"""Requests to Bedrock's Converse API: the region, the path of a model, and the two kinds of keys."""

import pytest

from gateway.domain.channel import Channel
from gateway.domain.http_request import HttpRequest
from gateway.domain.operation import OPERATIONS
from gateway.domain.upload import Content
from gateway.errors import UnsupportedByProvider
from gateway.providers.base import EndpointRequest
from gateway.providers.bedrock_converse import BEDROCK_CONVERSE, find_region
from tests.support.table_rows import table_rows

ROOT = "https://bedrock-runtime.eu-west-1.amazonaws.com"
NOON_S = 1_795_435_200


def build_request(key: str, *, stream: bool = False, body: bytes | Content = b"{}", model: str = "m") -> HttpRequest:
    endpoint = BEDROCK_CONVERSE.endpoints[0]
    channel = Channel("up", "bedrock_converse", ROOT)
    endpoint_request = EndpointRequest(body, stream=stream)
    return BEDROCK_CONVERSE.build_request(channel, endpoint, endpoint_request, model=model, key=key, now_s=NOON_S)


@table_rows(
    ("url", "region"),
    [
        (ROOT, "eu-west-1"),
        ("https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://bedrock-runtime.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("https://vpce-1-a.bedrock-runtime.ap-south-1.vpce.amazonaws.com", "ap-south-1"),
        ("http://127.0.0.1:9/v1", "us-east-1"),
    ],
)
def test_the_region_is_in_the_address(url: str, region: str) -> None:
    assert find_region(url) == region


@table_rows(
    ("model", "stream", "path"),
    [
        ("anthropic.claude-x-v1:0", False, "/model/anthropic.claude-x-v1%3A0/converse"),
        ("us.amazon.nova-2-lite-v1:0", True, "/model/us.amazon.nova-2-lite-v1%3A0/converse-stream"),
        (
            "arn:aws:bedrock:eu-west-1:1:inference-profile/x",
            False,
            "/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Ainference-profile%2Fx/converse",
        ),
    ],
)
def test_a_model_is_in_the_path(model: str, stream: bool, path: str) -> None:
    assert build_request("k", stream=stream, model=model).url == ROOT + path


def test_every_chat_operation_reaches_it() -> None:
    for operation in ("chat", "messages", "responses", "generate_content"):
        assert BEDROCK_CONVERSE.find_endpoint(OPERATIONS[operation].formats, "m") is not None


def test_an_access_key_signs_the_body_and_the_time() -> None:
    headers = build_request("AKID:se/cr+et").headers
    assert headers["X-Amz-Date"] == "20261123T120000Z"
    assert "/20261123/eu-west-1/bedrock/aws4_request" in headers["Authorization"]
    assert "X-Amz-Security-Token" not in headers
    assert build_request("AKID:se/cr+et", body=b"{ }").headers["Authorization"] != headers["Authorization"]
    assert "se/cr+et" not in str(headers)


@table_rows("name", ["authorization", "Authorization", "x-amz-date"])
def test_a_header_of_the_channel_does_not_stand_beside_the_signature(name: str) -> None:
    channel = Channel("up", "bedrock_converse", ROOT, headers=((name, "mine"), ("x-team", "a")))
    endpoint = BEDROCK_CONVERSE.endpoints[0]
    signed = BEDROCK_CONVERSE.build_request(
        channel, endpoint, EndpointRequest(b"{}"), model="m", key="AKID:secret", now_s=NOON_S
    )
    assert [value for header, value in signed.headers.items() if header.lower() == name.lower()] != ["mine"]
    assert len({header.lower() for header in signed.headers}) == len(signed.headers)
    assert signed.headers["x-team"] == "a"


def test_temporary_credentials_send_their_token() -> None:
    assert build_request("AKID:secret:tok:en==").headers["X-Amz-Security-Token"] == "tok:en=="


@table_rows("key", ["bedrock-api-key-YmVkcm9jaw==", "AKID:", ":secret"])
def test_any_other_key_is_a_bearer_token(key: str) -> None:
    headers = build_request(key).headers
    assert headers["Authorization"] == f"Bearer {key}"
    assert "X-Amz-Date" not in headers


def test_a_body_that_is_not_in_memory_is_not_signed() -> None:
    with pytest.raises(UnsupportedByProvider):
        build_request("AKID:secret", body=Content((b"a", b"b")))
