"""Images of the OpenAI API, passed through to channels that use the same format."""

from gateway.formats.images.openai import build_edits_form, build_images_body
from gateway.formats.images.openai_stream import ImagesPassthrough, build_whole
from gateway.formats.passthrough_format import PassthroughFormat, reject_unstreamed

IMAGES = PassthroughFormat(build_images_body, reject_unstreamed, ImagesPassthrough, build_whole)
EDITS = PassthroughFormat(build_edits_form, reject_unstreamed, ImagesPassthrough, build_whole)
