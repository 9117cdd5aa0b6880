"""Which words a caller is told a job's status in."""

from aiohttp import web

from gateway.dialects.openai_videos import StatusWords
from gateway.web.keys import ROOMS

_OF_CLIENT_LIBRARIES = "x-stainless-"


def find_status_words(request: web.Request) -> StatusWords:
    """The convention's client libraries take any word for the end that they do not know; they tell who they are."""
    words = request.app[ROOMS].status_words()
    if words != "auto":
        return words
    told = any(name.lower().startswith(_OF_CLIENT_LIBRARIES) for name in request.headers)
    return "openai" if told else "spec"
