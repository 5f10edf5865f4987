"""What a terminal of the app's size shows, as text: read back from the app's own SVG export."""

from __future__ import annotations

import html
import re
from typing import Any

CELL = 12.2
_TEXT = re.compile(
    r'<text class="[^"]*" x="([\d.]+)" y="[\d.]+"[^>]*clip-path="url\(#[^)]*line-(\d+)\)"[^>]*>([^<]*)</text>'
)


def screen_text(app: Any) -> str:
    """The rendered cells, trailing blanks cut. Ids, fonts and colours are gone, so only what is read is compared."""
    width, height = app.size
    cells = [[" "] * width for _ in range(height)]
    for x, line, text in _TEXT.findall(app.export_screenshot()):
        column = round(float(x) / CELL)
        for k, char in enumerate(html.unescape(text).replace("\xa0", " ")):
            if column + k < width and int(line) < height:
                cells[int(line)][column + k] = char
    return "\n".join("".join(row).rstrip() for row in cells) + "\n"
