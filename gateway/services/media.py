"""Open media: images, uploads, and the files that clients fetch."""

from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from gateway.deferred import Once, load
from gateway.media.client_files import ClientFiles
from gateway.media.client_uploads import ClientUploads
from gateway.media.signed_links import SignedLinks
from gateway.server.context import FileServices, MediaServices, MediaStores, Services
from gateway.services.media_store import open_media_stores
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.environment_proxy import open_environment_proxies
from gateway.upstream.safe_fetch import SafeFetcher

if TYPE_CHECKING:  # imported with the first image request
    from gateway.media.images import ImageService

MIB = 1024 * 1024
SPOOLED_UPLOADS = 16
"""How many uploads of the largest size the disk holds at a time."""


def open_media(services: Services, stack: AsyncExitStack) -> tuple[MediaServices, FileServices]:
    """Open media and clients' files. Raises ``DatabaseStartupError`` if their folder is unusable."""
    options, live_config = services.options, services.live_config
    folder, stores = options.folder, open_media_stores(services)
    links = SignedLinks(
        stores.images, folder.secret("media.key"), ttl_s=live_config.find_link_ttl_s, clock=options.clock
    )
    fetcher = SafeFetcher(allow=live_config.find_allowed_networks, find_proxy=open_environment_proxies(options.environ))
    stack.push_async_callback(fetcher.close)
    images: Once[ImageService] = Once(partial(_open_images, services, fetcher, links))
    stack.push_async_callback(_close_images, images)
    limit_bytes = SPOOLED_UPLOADS * options.config.server.max_upload_mb * MIB
    spool = UploadSpool(folder.path / "uploads", limit_bytes=limit_bytes)
    return MediaServices(stores, links, images, spool, fetcher), _open_files(services, stores)


def _open_images(services: Services, fetcher: SafeFetcher, links: SignedLinks) -> "ImageService":
    options, delivery = services.options, load("media.image_delivery:ImageDelivery")(fetcher, links)
    images: ImageService = load("media.images:ImageService")(
        services.client,
        delivery,
        find_words=services.live_config.find_words,
        clock=options.clock,
        wait_scale=options.task_pace,
    )
    return images


async def _close_images(images: "Once[ImageService]") -> None:
    if images.made is not None:
        await images.made.close()


def _open_files(services: Services, stores: MediaStores) -> FileServices:
    storage, rules = services.storage, services.live_config.find_file_rules
    store, expiry = ClientFileRepository(storage.database), storage.retention_clock.now
    files = ClientFiles(store, stores.files, rules, services.clock, expiry)
    return FileServices(files, ClientUploads(files))
