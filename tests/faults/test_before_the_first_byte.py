"""A provider fails before the caller has heard anything: what the matrix of faults does not say.

Each fault alone, and with a healthy second channel, streamed and whole, is in ``test_matrix.py``.
"""

import pytest

from tests.support.fault_scene import call, site
from tests.support.gateway import channel
from tests.support.scripted_upstream import ScriptedUpstream, answer
from tests.support.started_gateways import StartGateway

REPEATED = {"error": {"message": "refused: provider-key"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [200, 400, 404, 429, 500, 503])
async def test_the_key_of_a_channel_is_masked_wherever_a_provider_repeats_it(
    standing_with: StartGateway, status: int, stream: bool
) -> None:
    # It does not look like a key, so only the channel's own knowledge of it can mask it.
    async with ScriptedUpstream([answer(REPEATED, status)]) as bad:
        gateway = await standing_with(site(channel(bad.base_url)))
        heard = await call(gateway, stream=stream)
        assert heard.status == (status if status in {400, 404, 429} else 502)
        assert b"refused" in heard.body
        assert b"provider-key" not in heard.body
