"""Forms of image requests."""

import attrs

from gateway.domain.upload import HEAD_BYTES, Upload
from gateway.formats.wire.form import ReceivedForm
from tests.support.image_providers import draw

PNG = draw()


@attrs.frozen
class Kept:
    """A file that waits in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    async def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]


def upload(field: str = "image", data: bytes = PNG, filename: str = "cat.png") -> Upload:
    """A file of a form."""
    return Upload(field, filename, "application/octet-stream", data[:HEAD_BYTES], Kept(data))


def form(*files: Upload, **fields: str) -> ReceivedForm:
    """A form with a model and a prompt."""
    return ReceivedForm(tuple({"model": "m", "prompt": "a hat", **fields}.items()), files)
