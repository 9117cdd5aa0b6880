"""Takes screenshots of every page of the console: in each language, at six widths, in light and in dark.

    python scripts/console_screenshots.py FOLDER [--only keys --only health] [--language zh-Hans] [--width 390]
        [--scheme dark]

Starts a gateway that was used for three months (``tests/browser/seed.py``), and opens its pages in Chromium. Reports
elements that are cut off or overlap. Needs the development packages.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.server.console.language import COOKIE, LANGUAGES
from tests.browser.chromium import open_chromium
from tests.browser.gateways import Guests, VisitedGateway
from tests.browser.seed import open_used_gateway
from tests.browser.test_pages import ALONE, SHOWN
from tests.browser.user import Visitor

WIDTHS: Mapping[int, int] = {2560: 1440, 1920: 1080, 1440: 900, 1280: 800, 1024: 768, 390: 844}
"""Width -> height of the window."""
SCHEMES = ("light", "dark")


async def take_screenshots(
    visitor: Visitor, pages: Mapping[str, str], languages: Sequence[str], widths: Sequence[int], schemes: Sequence[str]
) -> int:
    """Take screenshots of some pages; return how many of them have something that is cut off or overlaps."""
    page, wrong = visitor.page, 0
    for language in languages:
        cookie = {"name": COOKIE, "value": language, "url": f"{visitor.url}/console"}
        await visitor.context.add_cookies([cookie])  # type: ignore[list-item]
        for name, path in pages.items():
            await page.goto("about:blank")  # an address that differs by its fragment alone is no other page
            await visitor.go(path)
            await page.wait_for_load_state("load")
            for width in widths:
                await page.set_viewport_size({"width": width, "height": WIDTHS[width]})
                for scheme in schemes:
                    await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                    await page.screenshot(
                        path=visitor.shots / f"{name}-{language}-{width}-{scheme}.png", full_page=True
                    )
                for slip in await visitor.find_slips():
                    wrong += 1
                    print(f"{name} {language} {width}: {slip[:200]}")
    return wrong


async def look(
    gateway: VisitedGateway,
    only: Sequence[str],
    languages: Sequence[str],
    widths: Sequence[int],
    schemes: Sequence[str],
) -> int:
    """Look at the pages of an administrator and at those of a visitor."""
    shown = {name: path.format_map(gateway.known) for name, path in SHOWN.items() if not only or name in only}
    alone = {name: path for name, path in ALONE.items() if (not only or name in only) and name != "nothing-there"}
    ada, visitor = await gateway.visit("ada", "administrator"), await gateway.visit()
    wrong = await take_screenshots(ada, shown, languages, widths, schemes)
    return wrong + await take_screenshots(visitor, alone, languages, widths, schemes)


async def run(args: argparse.Namespace) -> int:
    """Open the gateway and the browser, and look."""
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        async with open_chromium() as browser:
            guests = Guests(browser, args.folder)
            data, template = Path(folder) / "data", Path(folder) / "template.db"
            async with open_used_gateway(guests, data, template, has_history=True) as gateway:
                return await look(
                    gateway,
                    args.only or (),
                    args.language or list(LANGUAGES),
                    args.width or list(WIDTHS),
                    args.scheme or SCHEMES,
                )


def main() -> int:
    """Take the screenshots; fail if something is cut off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=[*SHOWN, *ALONE])
    parser.add_argument("--language", action="append", choices=list(LANGUAGES))
    parser.add_argument("--width", action="append", type=int, choices=list(WIDTHS))
    parser.add_argument("--scheme", action="append", choices=SCHEMES)
    wrong = asyncio.run(run(parser.parse_args()))
    print(f"{wrong} places are wider than they may be")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
