"""What is asked of a painter, and what came: nouns whose contents no log line shows."""

import attrs
import pytest

from gateway.domain.image import Image, ImageRequest, Images
from gateway.domain.usage import NO_USAGE
from tests.support.table_rows import table_rows


def test_a_prompt_alone_asks_for_one_image_at_an_address_in_any_size() -> None:
    image_request = ImageRequest("a cat")
    assert (
        image_request.count,
        image_request.size,
        image_request.form,
        image_request.sources,
        image_request.masked,
    ) == (1, None, "url", 0, False)


@table_rows(
    "noun",
    [
        ImageRequest("hunter2"),
        Image(data="hunter2"),
        Image(url="https://host/1.png?key=hunter2"),
        Image(data="eA==", revised_prompt="hunter2"),
        Images((Image(data="hunter2"),)),
    ],
)
def test_neither_a_prompt_nor_a_image_is_shown(noun: object) -> None:
    assert "hunter2" not in repr(noun)


def test_images_of_whom_nothing_is_told_used_nothing_and_say_nothing() -> None:
    first, second = Images(()), Images(())
    assert (first.usage, first.reported) == (NO_USAGE, {})
    assert first.reported is not second.reported


@table_rows("noun", [ImageRequest("a cat"), Image(data="eA=="), Images(())])
def test_they_cannot_be_changed(noun: object) -> None:
    for field in attrs.fields(type(noun)):  # type: ignore[arg-type]
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(noun, field.name, None)
