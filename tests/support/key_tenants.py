"""Two keys of one account, what they spend, and what they are told about it."""

from typing import Any

from tests.support.gateway import KEY, RunningGateway

OTHER_KEY = "sk-test-key-of-a-colleague"


def tenants(account: dict[str, Any] | None = None, **first: Any) -> dict[str, Any]:
    """Two keys of one account; ``first`` are settings of the first."""
    return {
        "account": [{"name": "acme", **(account or {})}],
        "key": [
            {"name": "first", "account": "acme", "secret": KEY, **first},
            {"name": "second", "account": "acme", "secret": OTHER_KEY},
        ],
    }


async def page(gateway: RunningGateway, path: str, **query: str) -> dict[str, Any]:
    async with gateway.client.get(gateway.url + path, params=query) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("application/json")
        return await response.json()  # type: ignore[no-any-return]


async def spend(gateway: RunningGateway, *keys: str) -> None:
    """A call of each key, and its row in the store."""
    for key in keys:
        async with gateway.post(headers={"Authorization": f"Bearer {key}"}) as response:
            assert response.status == 200
    await gateway.rows(len(keys))
