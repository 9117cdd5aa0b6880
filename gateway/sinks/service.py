"""The sinks of this gateway: their states, and a test of one."""

import secrets
from collections.abc import Callable, Sequence

from gateway.config.sink_schema import SinkSpec
from gateway.domain.request_log import ID_PREFIX, RequestRecord
from gateway.domain.sink import SinkState
from gateway.frozen import frozen
from gateway.sinks.batch import DeliveryFailed, SinkAnswer, SinkBatch, SinkEntry
from gateway.sinks.worker import SinkWorker
from gateway.storage.retention import CountLost
from gateway.storage.sinks import SinkRepository

SAMPLE_NAME = "sink-test"
"""The account, key and model of the sample that a test sends."""
SAMPLE_TAGS = "gateway=sink-test"
_ID_BYTES = 12


@frozen(eq=False)
class Sink:
    """A configured sink and its worker."""

    spec: SinkSpec
    worker: SinkWorker


class SinkService:
    """The sinks, in the order of the configuration.

    Args:
        count_lost: counts the requests that retention deletes before the sinks have delivered them.
    """

    def __init__(
        self, sinks: Sequence[Sink], states: SinkRepository, clock: Callable[[], float], count_lost: CountLost
    ) -> None:
        self.sinks = sinks
        self.clock = clock
        self.count_lost = count_lost
        self._states = states

    async def list_states(self) -> list[tuple[SinkSpec, SinkState | None]]:
        """Return the sinks with their states as stored; None for one that has not begun."""
        states = {state.name: state for state in await self.read_states()}
        return [(sink.spec, states.get(sink.spec.name)) for sink in self.sinks]

    async def read_states(self) -> list[SinkState]:
        """Return the stored states of the sinks that have begun."""
        return await self._states.list_states([sink.spec.name for sink in self.sinks])

    async def test(self, name: str) -> SinkAnswer | DeliveryFailed | None:
        """Send a marked sample to one sink. Return the answer or the failure; None if no sink has this name."""
        for sink in self.sinks:
            if sink.spec.name == name:
                row = build_sample(int(self.clock() * 1000))
                try:
                    return await sink.worker.send(SinkBatch(row.id, 0, [SinkEntry(row)]))
                except DeliveryFailed as error:
                    return error
        return None


def build_sample(now_ms: int) -> RequestRecord:
    """Return the row of an invented request without a cost."""
    return RequestRecord(
        id=f"{ID_PREFIX}{secrets.token_hex(_ID_BYTES)}",
        started_ms=now_ms,
        settled_ms=now_ms,
        operation="chat",
        account_id=0,
        account=SAMPLE_NAME,
        key_id=0,
        key_name=SAMPLE_NAME,
        model=SAMPLE_NAME,
        channel=None,
        status=200,
        outcome="completed",
        error_code=None,
        stream=False,
        attempts=0,
        prompt_tokens=0,
        completion_tokens=0,
        cached_tokens=0,
        usage_source="none",
        cost_nanos=0,
        reserved_nanos=0,
        overrun_nanos=0,
        first_byte_ms=None,
        total_ms=0,
        tags=SAMPLE_TAGS,
    )
