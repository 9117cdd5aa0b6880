"""``loops`` of a key: how often the same conversation may be answered."""

from gateway.frozen import frozen


@frozen
class LoopRule:
    """At most ``same_prompt`` requests with the same conversation are answered within ``window_s`` seconds."""

    same_prompt: int
    window_s: int = 300
