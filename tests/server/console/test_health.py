"""The page of the gateway's health."""

import pytest

from gateway.server.console.language import CHINESE
from gateway.server.context import SERVICES
from tests.support.console_people import make_administrator
from tests.support.gateway import channel
from tests.support.started_gateways import StartGateway


@pytest.mark.parametrize(
    ("count", "words", "translation"),
    [
        (1, "1 row refused by the database", "数据库拒绝了 1 行"),
        (1_200, "1,200 rows refused by the database", "数据库拒绝了 1,200 行"),
    ],
)
async def test_rows_that_the_database_refused_are_counted(
    gateway_with: StartGateway, count: int, words: str, translation: str
) -> None:
    gateway = await gateway_with({"channel": [channel("http://127.0.0.1:9/v1")]})
    gateway.app[SERVICES].storage.unstorable.count = count
    ada = await make_administrator(gateway)
    async with ada.session:
        assert words in (await ada.open("/health"))[1]
        ada.session.headers["Accept-Language"] = CHINESE
        assert translation in (await ada.open("/health"))[1]
