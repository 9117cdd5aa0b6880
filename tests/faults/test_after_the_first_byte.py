"""A provider fails after the caller has heard from it: what the matrix of faults does not say.

Each fault alone, and beside a healthy second channel, is in ``test_matrix.py``.
"""

from tests.support.fault_scene import audit, call, check_broken_stream, good_script, site
from tests.support.gateway import channel
from tests.support.scripted_upstream import FIN, LAST_CHUNK, RST, STALL, ScriptedUpstream, chunk, event, usage_frame
from tests.support.started_gateways import StartGateway
from tests.support.upstream_scripts import ONE, STARTED, TWO


async def test_a_broken_stream_whose_usage_was_told_is_charged_by_it(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([*STARTED, chunk(event(usage_frame(11, 13))), FIN]) as bad:
        gateway = await standing_with(site(channel(bad.base_url)))
        assert check_broken_stream(await call(gateway, stream=True), "upstream_error") == [ONE, TWO]
        row = await audit(gateway, bad, outcome="failed", usage_source="upstream")
        assert (row.prompt_tokens, row.completion_tokens, row.cost_nanos) == (11, 13, 37_000)


async def test_an_end_mark_in_lower_case_is_none(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([*STARTED, chunk(b"data: [done]\n\n"), LAST_CHUNK]) as bad:
        gateway = await standing_with(site(channel(bad.base_url)))
        check_broken_stream(await call(gateway, stream=True), "upstream_error")
        await audit(gateway, outcome="failed", usage_source="estimate")


async def test_the_key_of_a_channel_is_masked_wherever_a_provider_repeats_it(standing_with: StartGateway) -> None:
    # It does not look like a key, so only the channel's own knowledge of it can mask it.
    reported = b'data: {"error": {"message": "refused: provider-key"}}\n\n'
    async with ScriptedUpstream([*STARTED, chunk(reported), STALL]) as bad:
        gateway = await standing_with(site(channel(bad.base_url)))
        check_broken_stream(await call(gateway, stream=True), "upstream_error")
        await audit(gateway, bad, outcome="failed")


async def test_a_fault_of_one_stream_leaves_the_others_alone(standing_with: StartGateway) -> None:
    async with ScriptedUpstream([*STARTED, RST], good_script(stream=True)) as up:
        gateway = await standing_with(site(channel(up.base_url)))
        check_broken_stream(await call(gateway, stream=True), "upstream_error")
        heard = await call(gateway, stream=True)
        assert heard.body.endswith(b"data: [DONE]\n\n")
        rows = await gateway.rows(2)
        assert [row.outcome for row in rows] == ["failed", "completed"]
