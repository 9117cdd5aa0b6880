"""The status words of a video job: OpenAI's or those of the video specification."""

from aiohttp import web

from gateway.domain.video import StatusWords, VideoJob
from gateway.server.context import SERVICES
from gateway.server.media_type import read_media_type

_CLIENT_LIBRARY_PREFIX = "x-stainless-"
FORM_TYPE = "multipart/form-data"


def find_status_words(request: web.Request, job: VideoJob) -> StatusWords:
    """Return the status words for a response about ``job``, by the setting.

    With "auto", OpenAI's client libraries, recognized by their headers, get OpenAI's words, because they stop polling
    at an unknown word. Other clients get the words stored with the job.
    """
    words = request.app[SERVICES].live_config.find_status_words()
    if words != "auto":
        return words
    return "openai" if _names_library(request) else job.status_words


def find_submitted_words(request: web.Request) -> StatusWords:
    """Return the status words to store with a job: OpenAI's for forms and OpenAI's libraries, else "spec"."""
    return "openai" if read_media_type(request) == FORM_TYPE or _names_library(request) else "spec"


def _names_library(request: web.Request) -> bool:
    return any(name.lower().startswith(_CLIENT_LIBRARY_PREFIX) for name in request.headers)
