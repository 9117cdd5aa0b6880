"""Every page of the console."""

from aiohttp import web

from gateway.web.console.account_page import ACCOUNT_PAGES
from gateway.web.console.channels_pages import CHANNEL_PAGES
from gateway.web.console.connect import CONNECT_PAGES
from gateway.web.console.files import find_static, hang_files
from gateway.web.console.front import FRONT_PAGES
from gateway.web.console.keys_pages import KEY_PAGES
from gateway.web.console.overview import OVERVIEW_PAGES
from gateway.web.console.pages import Page, hang_pages
from gateway.web.console.people import PEOPLE_PAGES
from gateway.web.console.playground import PLAYGROUND_PAGES
from gateway.web.console.prices_pages import PRICE_PAGES
from gateway.web.console.requests_pages import REQUEST_PAGES
from gateway.web.console.videos_pages import VIDEO_PAGES
from gateway.web.console.watching import WATCHING_PAGES


def list_pages() -> tuple[Page, ...]:
    """Every page."""
    return (
        *FRONT_PAGES,
        *CONNECT_PAGES,
        *PLAYGROUND_PAGES,
        *ACCOUNT_PAGES,
        *OVERVIEW_PAGES,
        *KEY_PAGES,
        *REQUEST_PAGES,
        *VIDEO_PAGES,
        *WATCHING_PAGES,
        *PEOPLE_PAGES,
        *CHANNEL_PAGES,
        *PRICE_PAGES,
    )


def add_console(app: web.Application) -> None:
    """Everything under ``/console``."""
    hang_files(app)
    hang_pages(app, list_pages(), find_static)
