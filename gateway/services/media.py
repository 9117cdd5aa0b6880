"""Opens media: images, uploads, downloads from URLs, and clients' files."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gateway.deferred import CreatedOnce
from gateway.media.client_files import ClientFiles
from gateway.media.client_uploads import ClientUploads
from gateway.media.signed_links import SignedLinks
from gateway.server.context import FileServices, MediaServices, MediaStores
from gateway.services.base import BaseServices
from gateway.services.media_store import open_media_stores
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.environment_proxy import open_environment_proxies
from gateway.upstream.interface import HttpClient
from gateway.upstream.safe_fetch import SafeFetcher

if TYPE_CHECKING:  # imported with the first image request
    from gateway.media.images import ImageService

MIB = 1024 * 1024
MAX_SPOOLED_UPLOADS = 16
"""How many uploads of the largest size the disk holds at a time."""


def open_media(base: BaseServices, client: HttpClient, stack: AsyncExitStack) -> tuple[MediaServices, FileServices]:
    """Open media and clients' files. Raises the errors of ``open_media_stores``."""
    options, live_config = base.options, base.live_config
    folder, stores = options.folder, open_media_stores(options)
    links = SignedLinks(
        stores.images, folder.secret("media.key"), ttl_s=live_config.find_link_ttl_s, clock=options.clock
    )
    fetcher = SafeFetcher(
        find_allowed_networks=live_config.find_allowed_networks, find_proxy=open_environment_proxies(options.environ)
    )
    stack.push_async_callback(fetcher.close)
    images = CreatedOnce(lambda: _make_images(base, client, fetcher, links))
    stack.push_async_callback(_close_images, images)
    limit_bytes = MAX_SPOOLED_UPLOADS * options.config.server.max_upload_mb * MIB
    spool = UploadSpool(folder.path / "uploads", limit_bytes=limit_bytes)
    return MediaServices(stores, links, images, spool, fetcher), _open_files(base, stores)


def _make_images(base: BaseServices, client: HttpClient, fetcher: SafeFetcher, links: SignedLinks) -> "ImageService":
    from gateway.media.image_delivery import ImageDelivery  # noqa: PLC0415 - with the first image request
    from gateway.media.images import ImageService  # noqa: PLC0415

    return ImageService(
        client,
        ImageDelivery(fetcher, links),
        find_words=base.live_config.find_words,
        clock=base.options.clock,
        wait_scale=base.options.task_pace,
    )


async def _close_images(images: "CreatedOnce[ImageService]") -> None:
    if images.instance is not None:
        await images.instance.close()


def _open_files(base: BaseServices, stores: MediaStores) -> FileServices:
    storage, rules = base.storage, base.live_config.find_file_rules
    store, expiry = ClientFileRepository(storage.database), storage.retention_clock.now
    files = ClientFiles(store, stores.files, rules, base.options.clock, expiry)
    return FileServices(files, ClientUploads(files))
