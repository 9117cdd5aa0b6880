"""Every page of the console."""

from aiohttp import web

from gateway.web.console.files import hang_files
from gateway.web.console.front import FRONT_PAGES
from gateway.web.console.pages import Page, hang_pages


def list_pages() -> tuple[Page, ...]:
    """Every page."""
    return FRONT_PAGES


def add_console(app: web.Application) -> None:
    """Everything under ``/console``."""
    hang_files(app)
    hang_pages(app, list_pages())
