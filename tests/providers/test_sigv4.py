"""AWS Signature Version 4: the examples that AWS publishes.

The aws-sig-v4-test-suite (docs.aws.amazon.com/IAM/latest/UserGuide/signature-v4-test-suite.html), by the names of its
examples; and a request to Bedrock, as botocore signs it.
"""

import attrs

from gateway.providers.sigv4 import AwsCredentials, sign_request
from tests.support.table_rows import table_rows

CREDENTIALS = AwsCredentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
UNRESERVED = "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
HOST = "https://example.amazonaws.com"
THEN_S = 1_440_938_160  # 20150830T123600Z
TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwth"
    "Ax7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAk"
    "iY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)


@table_rows(
    ("method", "path", "headers", "body", "signature"),
    [
        ("GET", "/", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", {}, b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "GET",
            "/?Param2=value2&Param1=value1",
            {},
            b"",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        ("POST", "/?Param1=value1", {}, b"", "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"),
        ("GET", "/ሴ", {}, b"", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
        (
            "POST",
            "/",
            {"Content-Type": "application/x-www-form-urlencoded"},
            b"Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
        (
            "GET",
            "/",
            {"My-Header1": "value1", "My-Header2": '"a   b   c"'},
            b"",
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        ),
        (
            "GET",
            "/",
            {"My-Header1": "value2,value2,value1"},
            b"",
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        (
            "GET",
            "/",
            {"My-Header1": "value1,value2,value3"},
            b"",
            "ba17b383a53190154eb5fa66a1b836cc297cc0a3d70a5d00705980573d8ff790",
        ),
        ("GET", "/?Param1=value1", {}, b"", "a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"),
        (
            "GET",
            "/?Param1=value2&Param1=value1",
            {},
            b"",
            "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694",
        ),
        (
            "GET",
            "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
            {},
            b"",
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        (
            "GET",
            f"/?{UNRESERVED}={UNRESERVED}",
            {},
            b"",
            "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197",
        ),
        ("GET", "/?ሴ=bar", {}, b"", "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"),
        ("GET", f"/{UNRESERVED}", {}, b"", "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"),
        ("GET", "/example space/", {}, b"", "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"),
    ],
    ids=["get-vanilla", "post-vanilla", "get-vanilla-query-order-key-case", "post-vanilla-query", "get-utf8",
         "post-x-www-form-urlencoded", "get-header-value-trim", "get-header-key-duplicate",
         "get-header-value-multiline", "get-vanilla-empty-query-key", "get-vanilla-query-order-value",
         "get-vanilla-query-order-encoded", "get-vanilla-query-unreserved", "get-vanilla-utf8-query",
         "get-unreserved", "get-space"],
)  # fmt: skip
def test_a_published_example_has_its_signature(
    method: str, path: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    signed = sign_request(
        method, HOST + path, headers, body, credentials=CREDENTIALS, region="us-east-1", service="service", now_s=THEN_S
    )
    names = ";".join(sorted({"host", "x-amz-date", *(name.lower() for name in headers)}))
    assert signed == {
        "X-Amz-Date": "20150830T123600Z",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        f"SignedHeaders={names}, Signature={signature}",
    }


def test_temporary_credentials_sign_their_token() -> None:
    signed = sign_request(
        "POST",
        f"{HOST}/",
        {},
        b"",
        credentials=attrs.evolve(CREDENTIALS, session_token=TOKEN),
        region="us-east-1",
        service="service",
        now_s=THEN_S,
    )
    assert signed["X-Amz-Security-Token"] == TOKEN
    assert signed["Authorization"].endswith(
        "SignedHeaders=host;x-amz-date;x-amz-security-token, "
        "Signature=85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"
    )


def test_the_path_of_a_model_is_encoded_once_more() -> None:
    signed = sign_request(
        "POST",
        "https://bedrock-runtime.eu-west-1.amazonaws.com/model/us.anthropic.claude-x-v1%3A0/converse-stream",
        {"Content-Type": "application/json", "Accept": "application/json"},
        b'{"messages":[]}',
        credentials=AwsCredentials("AKID", "se/cr+et", "tok=="),
        region="eu-west-1",
        service="bedrock",
        now_s=1_795_435_200,
    )
    assert signed["X-Amz-Date"] == "20261123T120000Z"
    assert signed["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKID/20261123/eu-west-1/bedrock/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, "
        "Signature=ad58f8824deac406b075fb08c8de33c4cf819f40810f14acff9d743384a13704"
    )
