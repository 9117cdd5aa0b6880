"""Record the README's moving picture: a chat request and its streamed answer in a terminal, as an animated SVG.

    python scripts/record_stream.py [--to scripts/stream.svg]

Starts a gateway over a temporary folder, sends the README's request, and draws each word at the moment at which it
arrived. Needs the development packages.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import textwrap
import time
from html import escape
from pathlib import Path

import aiohttp
import aiohttp.web

sys.path.insert(0, str(Path(__file__).parent.parent))

from gateway.app import open_runner
from gateway.config.schema import Config
from gateway.options import AppOptions
from gateway.server.context import SERVICES
from gateway.storage.data_folder import DataFolder

COLUMNS = 84
LINE_PX, CHARACTER_PX, MARGIN_PX, HEAD_PX = 22, 8.43, 20, 40
REST_S = 4.0
"""How long the finished answer stays before the picture begins again."""
QUESTION = "Name three uses of a model gateway, in one sentence each."
COMMAND = (
    "$ curl -N http://127.0.0.1:8080/v1/chat/completions \\",
    '    -H "Authorization: Bearer $GATEWAY_KEY" \\',
    '    -d \'{"model": "demo-chat", "stream": true, "messages": [ … ]}\'',
)
Word = tuple[float, str]
"""Seconds since the request was sent, and a piece of the answer."""


async def record() -> list[Word]:
    """Send the request to a gateway of its own; return the pieces of its answer with their times."""
    with tempfile.TemporaryDirectory() as folder:
        options = AppOptions(config=Config(), folder=DataFolder(Path(folder)), environ={}, discover=False)
        async with open_runner(options) as runner:
            await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/chat/completions"
            return await ask(url, runner.app[SERVICES].startup_info.secret or "")


async def ask(url: str, key: str) -> list[Word]:
    """Stream one answer."""
    body = {"model": "demo-chat", "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    words: list[Word] = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as client:
        began = time.monotonic()
        async with client.post(url, json=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    choices = json.loads(line[6:])["choices"]
                    if choices and (text := choices[0]["delta"].get("content")):
                        words.append((time.monotonic() - began, text))
    return words


def lay_out(words: list[Word]) -> list[tuple[float, int, int, str]]:
    """Return each piece with its time, line and column, wrapped between words."""
    lines = textwrap.wrap("".join(text for _, text in words), COLUMNS, drop_whitespace=False)
    placed: list[tuple[float, int, int, str]] = []
    line, column = 0, 0
    for at, text in words:
        for character in text.replace("\n", " "):
            if line < len(lines) - 1 and column >= len(lines[line].lstrip()):
                line, column = line + 1, -len(lines[line + 1]) + len(lines[line + 1].lstrip())
            if placed and placed[-1][0] == at and placed[-1][1] == line:
                placed[-1] = (at, line, placed[-1][2], placed[-1][3] + character)
            else:
                placed.append((at, line, column, character))
            column += 1
    return placed


def draw(words: list[Word]) -> str:
    """Return the SVG. Each piece of the answer appears at its time; the picture repeats."""
    placed = lay_out(words)
    total = words[-1][0] + 1.0 + REST_S
    first = len(COMMAND) + 1
    rows = first + placed[-1][1] + 1
    width, height = round(2 * MARGIN_PX + COLUMNS * CHARACTER_PX), HEAD_PX + rows * LINE_PX + MARGIN_PX
    size = f'width="{width}" height="{height}"'
    font = 'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} {font}>',
        "<title>A chat request and its streamed answer</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#14181f"/>',
        *(
            f'<circle cx="{20 + 18 * n}" cy="18" r="6" fill="{c}"/>'
            for n, c in enumerate(("#ff5f57", "#febc2e", "#28c840"))
        ),
    ]
    for number, text in enumerate(COMMAND):
        parts.append(_write(number, 0, text, "#9db2c9"))
    for at, line, column, text in placed:
        begin = (at + 1.0) / total
        animation = (
            f'<animate attributeName="opacity" values="0;0;1;1" keyTimes="0;{begin:.4f};{begin:.4f};1" '
            f'calcMode="linear" dur="{total:.2f}s" repeatCount="indefinite"/>'
        )
        parts.append(_write(first + line, column, text, "#e6edf3", animation))
    return "\n".join([*parts, "</svg>", ""])


def _write(row: int, column: int, text: str, color: str, inside: str = "") -> str:
    x, y = MARGIN_PX + column * CHARACTER_PX, HEAD_PX + (row + 1) * LINE_PX - 6
    place = f'x="{x:.1f}" y="{y}" textLength="{len(text) * CHARACTER_PX:.1f}"'
    return f'<text {place} fill="{color}" xml:space="preserve">{escape(text)}{inside}</text>'


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path(__file__).with_name("stream.svg"))
    target = parser.parse_args().to
    words = asyncio.run(record())
    target.write_text(draw(words), encoding="utf-8")
    print(f"{target}: {len(words)} pieces in {words[-1][0]:.1f} s")


if __name__ == "__main__":
    main()
