"""The Responses API, passed through to channels that use the same format."""

from gateway.formats.chat.responses.compact_call import build_compact_body, parse_compact_answer
from gateway.formats.chat.responses.response_to_stream import build_whole
from gateway.formats.chat.responses.responses import ResponsesPassthrough, build_responses_body, parse_responses_answer
from gateway.formats.passthrough_format import PassthroughFormat, unchanged_answer

RESPONSES = PassthroughFormat(
    build_responses_body, unchanged_answer(parse_responses_answer), ResponsesPassthrough, build_whole
)
COMPACT = PassthroughFormat(build_compact_body, unchanged_answer(parse_compact_answer))
