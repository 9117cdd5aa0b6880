"""Keys of Azure OpenAI: an API key is sent, credentials of Microsoft Entra ID buy a token."""

from gateway.domain.channel import Channel
from gateway.domain.http_request import TokenGrant
from gateway.providers.azure_openai import AZURE_OPENAI, find_grant
from gateway.providers.base import EndpointRequest
from tests.support.table_rows import table_rows

CLIENT = "11111111-2222-3333-4444-555555555555"
TENANT = "99999999-8888-7777-6666-555555555555"
RESOURCE = "https://r.openai.azure.com/openai/v1"
SCOPE = "https://cognitiveservices.azure.com/.default"


@table_rows(
    ("key", "base_url", "grant"),
    [
        (
            f"{TENANT}:{CLIENT}:se~cret.8Q",
            RESOURCE,
            TokenGrant(f"https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token", CLIENT, "se~cret.8Q", SCOPE),
        ),
        (
            f"contoso.onmicrosoft.com:{CLIENT}:with:colons:",
            "https://r.services.ai.azure.com/openai/v1",
            TokenGrant(
                "https://login.microsoftonline.com/contoso.onmicrosoft.com/oauth2/v2.0/token",
                CLIENT,
                "with:colons:",
                SCOPE,
            ),
        ),
        (
            f"{TENANT}:{CLIENT}:se~cret",
            "https://r.openai.azure.us/openai/v1",
            TokenGrant(
                f"https://login.microsoftonline.us/{TENANT}/oauth2/v2.0/token",
                CLIENT,
                "se~cret",
                "https://cognitiveservices.azure.us/.default",
            ),
        ),
        (
            f"{TENANT}:{CLIENT}:se~cret",
            "https://r.openai.azure.cn/openai/v1",
            TokenGrant(
                f"https://login.partner.microsoftonline.cn/{TENANT}/oauth2/v2.0/token",
                CLIENT,
                "se~cret",
                "https://cognitiveservices.azure.cn/.default",
            ),
        ),
        (
            f"http://127.0.0.1:9/{TENANT}:{CLIENT}:se~cret",
            RESOURCE,
            TokenGrant(f"http://127.0.0.1:9/{TENANT}/oauth2/v2.0/token", CLIENT, "se~cret", SCOPE),
        ),
    ],
)
def test_credentials_name_the_token_endpoint_of_their_cloud(key: str, base_url: str, grant: TokenGrant) -> None:
    assert find_grant(key, base_url) == grant
    http_request = AZURE_OPENAI.build_request(
        Channel("up", "azure_openai", base_url), AZURE_OPENAI.endpoints[0], EndpointRequest(b"{}"), model="m", key=key
    )
    assert http_request.grant == grant
    assert "api-key" not in http_request.headers
    assert grant.client_secret not in str(http_request.headers)


@table_rows("key", ["0123456789abcdef0123456789abcdef", "", f"{TENANT}:not-a-client:se~cret", f":{CLIENT}:se~cret"])
def test_any_other_key_is_sent_as_it_is(key: str) -> None:
    assert find_grant(key, RESOURCE) is None
    assert AZURE_OPENAI.sign(key) == ({"api-key": key} if key else {})
