"""A body whole, of what is pushed."""

from gateway.upstream.interface import HttpResponse, PumpResult


async def read_pushed(reply: HttpResponse, limit: int, announced: int | None) -> bytes | None:
    """What ``reply`` pushes until its end; None where it is more than ``limit`` bytes, or said to be ``announced``.

    Raises as ``HttpResponse.pump`` does.
    """
    pieces: list[bytes] = []
    size = 0

    def keep(piece: bytes, _raw: bytes | None) -> bool:
        nonlocal size
        size += len(piece)
        pieces.append(piece)
        return size > limit

    if (announced or 0) > limit or await reply.pump(keep) is PumpResult.PAUSED:
        return None
    return b"".join(pieces)
