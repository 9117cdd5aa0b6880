"""The console's own files: kept for good where their address says which they are, else asked for again each time."""

import re

import aiohttp

from gateway.server.console.static_files import find_build, read_files
from tests.support.started_gateways import StartGateway


async def test_a_file_is_kept_for_good_below_the_digest_of_them_all(gateway_with: StartGateway) -> None:
    gateway = await gateway_with({})
    static = f"{gateway.url}/console/static"
    async with aiohttp.ClientSession() as session:
        for build, kept in (
            (f"{find_build()}/", "public, max-age=31536000, immutable"),
            ("", "no-cache"),
            ("0" * 20 + "/", "no-cache"),
        ):
            async with session.get(f"{static}/{build}console.css") as response:
                assert (response.status, response.headers["Cache-Control"]) == (200, kept)
                assert await response.read() == read_files()["console.css"].body
                tag = response.headers["ETag"]
            async with session.get(f"{static}/{build}console.css", headers={"If-None-Match": tag}) as response:
                assert (response.status, response.headers["Cache-Control"]) == (304, kept)
        for nothing in ("nothing.js", f"{find_build()}/nothing.js", f"{find_build()}/../pages.py", "x/y/console.css"):
            async with session.get(f"{static}/{nothing}") as response:
                assert response.status == 404, nothing


def test_scripts_import_one_another_from_beside_them() -> None:
    """So that the digest in the address of the first is in that of all."""
    scripts = {name: file.body.decode() for name, file in read_files().items() if name.endswith(".js")}
    for name, text in scripts.items():
        for imported in re.findall(r"""^import\b(?:[^"']*\bfrom)?\s*["']([^"']+)["'];""", text, re.MULTILINE):
            assert imported.startswith("./"), name
            assert imported[2:] in scripts, name
