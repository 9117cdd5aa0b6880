"""A server of models that holds one at a time, as scripted provider: each answer waits for the test, or for a time."""

import asyncio

from tests.support.scripted_upstream import COMPLETION, Received, Script, ScriptedUpstream, answer, chat_script

LOAD_S, ANSWER_S = 5.0, 0.25
"""What a load and an answer take, in seconds that are only counted."""


class OneModelServer:
    """Answers one request after the other, in the order in which they come.

    Attributes:
        models: the models of the requests, in the order in which they were begun.
        busy_s: the time that a real server would have taken for them.
        open_gate: the answers go out; while it is cleared, each of them waits.
    """

    def __init__(self) -> None:
        self.models: list[str] = []
        self.busy_s = 0.0
        self.most_running = 0
        self.open_gate = asyncio.Event()
        self._running = 0
        self._turn = asyncio.Lock()

    def serve(self, *, stream: bool = False) -> ScriptedUpstream:
        script: Script = [self._answer, *(chat_script("good") if stream else [answer(COMPLETION)])]
        return ScriptedUpstream(script)

    async def _answer(self, received: Received) -> None:
        if received.method != "POST":
            return
        model = received.json["model"]
        self._running += 1
        self.most_running = max(self.most_running, self._running)
        try:
            async with self._turn:
                self.busy_s += ANSWER_S + (0.0 if self.models[-1:] == [model] else LOAD_S)
                self.models.append(model)
                await self.open_gate.wait()
        finally:
            self._running -= 1
