"""Open media: images, uploads, and the files that clients fetch."""

from contextlib import AsyncExitStack

from gateway.media.client_files import ClientFiles
from gateway.media.client_uploads import ClientUploads
from gateway.media.image_delivery import ImageDelivery
from gateway.media.images import ImageService
from gateway.media.signed_links import SignedLinks
from gateway.server.context import FileServices, MediaServices, MediaStores, Services
from gateway.services.media_store import open_media_stores
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.environment_proxy import open_environment_proxies
from gateway.upstream.safe_fetch import SafeFetcher

MIB = 1024 * 1024
SPOOLED_UPLOADS = 16
"""The disk holds this many uploads of the largest size at a time."""


def open_media(services: Services, stack: AsyncExitStack) -> tuple[MediaServices, FileServices]:
    """Open media and clients' files. Raises ``DatabaseStartupError`` if their folder cannot be used."""
    options, live_config = services.options, services.live_config
    folder, stores = options.folder, open_media_stores(services)
    links = SignedLinks(
        stores.images, folder.secret("media.key"), ttl_s=live_config.find_link_ttl_s, clock=options.clock
    )
    fetcher = SafeFetcher(allow=live_config.find_allowed_networks, find_proxy=open_environment_proxies(options.environ))
    stack.push_async_callback(fetcher.close)
    images = ImageService(
        services.client,
        ImageDelivery(fetcher, links),
        find_words=live_config.find_words,
        clock=options.clock,
        wait_scale=options.task_pace,
    )
    stack.push_async_callback(images.close)
    limit_bytes = SPOOLED_UPLOADS * options.config.server.max_upload_mb * MIB
    spool = UploadSpool(folder.path / "uploads", limit_bytes=limit_bytes)
    return MediaServices(stores, links, images, spool, fetcher), _open_files(services, stores)


def _open_files(services: Services, stores: MediaStores) -> FileServices:
    storage, rules = services.storage, services.live_config.find_file_rules
    store, expiry = ClientFileRepository(storage.database), storage.retention_clock.now
    files = ClientFiles(store, stores.files, rules, services.clock, expiry)
    return FileServices(files, ClientUploads(files))
