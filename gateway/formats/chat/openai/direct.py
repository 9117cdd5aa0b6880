"""Chat and other text operations of the OpenAI API, passed through to channels that use the same format."""

from gateway.formats.chat.openai.chat import ChatPassthrough, build_chat_body, parse_passed_answer
from gateway.formats.chat.openai.completion_to_stream import build_whole
from gateway.formats.chat.openai.completions import CompletionsPassthrough, build_completions_body
from gateway.formats.embeddings.openai import build_embeddings_body, parse_embeddings_answer
from gateway.formats.moderations import build_moderations_body, parse_moderations_answer
from gateway.formats.passthrough_format import PassthroughFormat, unchanged_answer, without_identity

CHAT = PassthroughFormat(build_chat_body, parse_passed_answer, ChatPassthrough, build_whole)
COMPLETIONS = PassthroughFormat(build_completions_body, parse_passed_answer, CompletionsPassthrough, build_whole)
EMBEDDINGS = PassthroughFormat(build_embeddings_body, without_identity(parse_embeddings_answer))
MODERATIONS = PassthroughFormat(build_moderations_body, unchanged_answer(parse_moderations_answer))
