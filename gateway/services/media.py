"""Open media: images, uploads, and the files that clients fetch."""

from contextlib import AsyncExitStack

from gateway.media.client_files import ClientFiles
from gateway.media.client_uploads import ClientUploads
from gateway.media.image_delivery import ImageDelivery
from gateway.media.images import ImageService
from gateway.media.signed_links import SignedLinks
from gateway.server.context import FileServices, MediaServices, Services
from gateway.storage.client_files import ClientFileRepository
from gateway.storage.file_folder import FileFolder
from gateway.storage.media_files import MediaFiles
from gateway.storage.upload_spool import UploadSpool
from gateway.upstream.safe_fetch import SafeFetcher

MIB = 1024 * 1024
SPOOLED_UPLOADS = 16
"""The disk holds this many uploads of the largest size at a time."""


def open_media(services: Services, stack: AsyncExitStack) -> MediaServices:
    """Open media."""
    options, live_config = services.options, services.live_config
    folder = options.folder
    files = MediaFiles(folder.path / "media")
    links = SignedLinks(files, folder.secret("media.key"), ttl_s=live_config.find_link_ttl_s, clock=options.clock)
    fetcher = SafeFetcher(allow=live_config.find_allowed_networks)
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
    return MediaServices(files, links, images, UploadSpool(folder.path / "uploads", limit_bytes=limit_bytes), fetcher)


def open_files(services: Services) -> FileServices:
    """Open clients' files."""
    storage = services.storage
    store, folder = ClientFileRepository(storage.database), FileFolder(services.options.folder.path / "files")
    files = ClientFiles(
        store, folder, services.live_config.find_file_rules, services.clock, storage.retention_clock.now
    )
    return FileServices(files, ClientUploads(files))
