"""Translation of the Responses API, for clients whose channel uses another format."""

from gateway.formats.chat.responses import compaction_writer
from gateway.formats.chat.responses.request_reader import parse_chat_request
from gateway.formats.chat.translated_format import ClientFormat

CLIENT = ClientFormat(
    parse_chat_request,
    compaction_writer.open_writer,
    compaction_writer.build_answer,
    {"messages": "input", "response_format": "text.format", "logprobs": "top_logprobs"},
)
