"""The console's pages, in one table."""

from aiohttp import web

from gateway.server.console.account import ACCOUNT_PAGES
from gateway.server.console.accounts import ACCOUNTS_PAGES
from gateway.server.console.activity import ACTIVITY_PAGES
from gateway.server.console.batches import BATCH_PAGES
from gateway.server.console.channels import CHANNEL_PAGES
from gateway.server.console.connect import CONNECT_PAGES
from gateway.server.console.keys import KEY_PAGES
from gateway.server.console.overview import OVERVIEW_PAGES
from gateway.server.console.page import Page, register_pages
from gateway.server.console.playground import PLAYGROUND_PAGES
from gateway.server.console.prices import PRICE_PAGES
from gateway.server.console.provider_sign_in import add_provider_sign_in
from gateway.server.console.requests import REQUEST_PAGES
from gateway.server.console.sign_in import SIGN_IN_PAGES
from gateway.server.console.static_files import find_static, register_static_files
from gateway.server.console.videos import VIDEO_PAGES


def list_pages() -> tuple[Page, ...]:
    """Return every page."""
    return (
        *SIGN_IN_PAGES,
        *CONNECT_PAGES,
        *PLAYGROUND_PAGES,
        *ACCOUNT_PAGES,
        *OVERVIEW_PAGES,
        *KEY_PAGES,
        *REQUEST_PAGES,
        *VIDEO_PAGES,
        *BATCH_PAGES,
        *ACTIVITY_PAGES,
        *ACCOUNTS_PAGES,
        *CHANNEL_PAGES,
        *PRICE_PAGES,
    )


def add_console(app: web.Application) -> None:
    """Add everything below ``/console``."""
    register_static_files(app)
    add_provider_sign_in(app)
    register_pages(app, list_pages(), find_static)
