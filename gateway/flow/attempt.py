"""A channel that may serve a call, and a call that is made over it."""

import attrs

from gateway.dialects.exchange import Exchange, Naming
from gateway.dialects.painting import Ask
from gateway.dialects.payload import Form, Said, write_payload
from gateway.domain.call import Call
from gateway.domain.capability import UNKNOWN, Capability
from gateway.domain.channel import Channel
from gateway.domain.fault import InvalidRequest, NotExpressible
from gateway.domain.plan import Plan
from gateway.domain.price import ONE_PPM, Price, cost_nanos
from gateway.domain.usage import Usage
from gateway.flow.switchboard import Lease, Line
from gateway.providers.base import Endpoint, Errand
from gateway.providers.registry import PROVIDERS

EVENT_STREAM = "text/event-stream"
NOTHING_SAID = Errand(None)


@attrs.frozen
class Option:
    """One channel that may serve a call, with the provider's own name of the model, and what it costs the caller.

    The price is that of the moment of routing: whatever is changed later is for later calls. ``sure`` is False where
    the channel's own list of models is not known yet.
    """

    line: Line
    endpoint: Endpoint
    model: str
    price: Price | None = None
    multiplier_ppm: int = ONE_PPM
    sure: bool = True
    capability: Capability = UNKNOWN

    @property
    def channel(self) -> Channel:
        """The channel."""
        return self.line.channel

    def bound(self, call: Call) -> Usage:
        """What ``call`` may use here. Pictures that take several calls have their prompt read by each of them."""
        need, most = call.need, self.capability.max_n
        if call.picture is None or most is None or call.picture.count <= most:
            return need
        calls = -(-call.picture.count // most)
        return attrs.evolve(need, prompt_tokens=need.prompt_tokens * calls)

    def cost(self, usage: Usage) -> int:
        """What ``usage`` costs, in nano-USD."""
        return cost_nanos(self.price, usage, self.multiplier_ppm)


@attrs.define(eq=False)
class Attempt:
    """A call over one channel with one of its keys. The channel is as it was when the attempt was begun."""

    option: Option
    channel: Channel
    lease: Lease
    exchange: Exchange

    @property
    def naming(self) -> Naming:
        """What its answer is called."""
        return self.exchange.naming

    def plan(self, call: Call) -> Plan:
        """The request to the provider. Raises ``NotExpressible``."""
        try:
            said = self.exchange.write_body()
        except InvalidRequest as refused:
            raise NotExpressible(refused.message, param=refused.param) from None
        errand = self._pack(said)
        manner = self.exchange.manner
        accept = EVENT_STREAM if call.stream and not manner.binary else manner.accept
        headers = _write_extra(call, self.option.endpoint)
        return self._address(attrs.evolve(errand, stream=call.stream, accept=accept, headers=headers))

    def plan_ask(self, ask: Ask) -> Plan:
        """One request on the way to pictures. Raises ``NotExpressible``."""
        errand = NOTHING_SAID if ask.said is None else self._pack(ask.said)
        return self._address(attrs.evolve(errand, method=ask.method, path=ask.path, headers=ask.headers))

    def _pack(self, said: Said) -> Errand:
        self.option.endpoint.shape(said.fields if isinstance(said, Form) else said, self.option.model)
        try:
            body, media_type = write_payload(said, self.naming.id)
        except InvalidRequest as refused:
            raise NotExpressible(refused.message, param=refused.param) from None
        return Errand(body, media_type)

    def _address(self, errand: Errand) -> Plan:
        option = self.option
        provider = PROVIDERS[self.channel.provider]
        return provider.plan(self.channel, option.endpoint, errand, model=option.model, key=self.lease.key.key)


def _write_extra(call: Call, endpoint: Endpoint) -> tuple[tuple[str, str], ...]:
    """The headers of Anthropic's language, which belong to a body that passes as its caller wrote it."""
    if not endpoint.wire.startswith("anthropic"):
        return ()
    told = (("anthropic-version", call.version), ("anthropic-beta", call.features))
    return tuple((name, value) for name, value in told if value)
