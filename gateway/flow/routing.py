"""Room 4: a call becomes a ranked list of attempts."""

import attrs

from gateway.dialects.openai_chat import write_chat_body
from gateway.dialects.openai_embeddings import write_embeddings_body
from gateway.domain.call import Call
from gateway.domain.channel import Channel
from gateway.domain.plan import Plan
from gateway.domain.selection import MAX_ATTEMPTS
from gateway.flow.models import Catalog, model_not_found
from gateway.providers.registry import PROVIDERS


@attrs.frozen
class Attempt:
    """One channel to try, with the provider's own name of the model."""

    channel: Channel
    model: str

    @property
    def key(self) -> str:
        """The provider key to sign with; empty where the channel has none."""
        return self.channel.api_keys[0] if self.channel.api_keys else ""

    def plan(self, call: Call) -> Plan:
        """The request to the provider."""
        provider = PROVIDERS[self.channel.provider]
        if call.operation == "chat":
            body = write_chat_body(call, self.model)
            return provider.plan_post(self.channel, "/chat/completions", self.key, body, stream=call.stream)
        body = write_embeddings_body(call, self.model)
        return provider.plan_post(self.channel, "/embeddings", self.key, body, stream=False)


def route(call: Call, catalog: Catalog) -> list[Attempt]:
    """The channels to try for ``call``, best first. Raises ``ModelNotFound`` where there are none."""
    channels = catalog.rank(call.model)
    if not channels:
        raise model_not_found(call.model)
    return [Attempt(channel, channel.upstream_model(call.model)) for channel in channels[:MAX_ATTEMPTS]]
