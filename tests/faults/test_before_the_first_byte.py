"""A provider fails before the caller has heard anything: what the matrix of faults does not say.

Each fault alone, and with a healthy second channel, streamed and whole, is in ``test_matrix.py``.
"""

import asyncio

import pytest

from tests.conftest import StartGateway
from tests.fakes.gateway import channel
from tests.fakes.upstream import FIN, RST, Act, ScriptedUpstream, answer
from tests.faults.scene import call, check_row_of_success, good_script, site

REPEATED = {"error": {"message": "refused: provider-key"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 400, 404, 429, 500, 503])
async def test_the_key_of_a_channel_is_masked_wherever_a_provider_repeats_it(
    standing_with: StartGateway,
    status: int,
    stream: bool,
) -> None:
    # It does not look like a key, so only the channel's own knowledge of it can mask it.
    async with ScriptedUpstream([answer(REPEATED, status)]) as bad:
        gateway = await standing_with(site(channel(bad.base_url)))
        heard = await call(gateway, stream=stream)
        assert heard.status == (status if status in {400, 404, 429} else 502)
        assert b"refused" in heard.body
        assert b"provider-key" not in heard.body


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("act", [FIN, RST])
async def test_an_idle_connection_that_closed_is_replaced_without_another_attempt(
    standing_with: StartGateway,
    act: Act,
    stream: bool,
) -> None:
    good = good_script(stream=stream)
    async with ScriptedUpstream(good, [act], good) as up:
        gateway = await standing_with(site(channel(up.base_url, "only")))
        assert (await call(gateway, stream=stream)).status == 200
        await gateway.rows(1)
        await asyncio.sleep(0.02)
        assert (await call(gateway, stream=stream)).status == 200
        for row in await gateway.rows(2):
            check_row_of_success(row, "only", attempts=1)
        assert [seen.connection for seen in up.received] == [1, 1, 2]
