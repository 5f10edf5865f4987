"""The README's screenshots from a stored session: `python tests/tui/take_screenshots.py SESSION` (PNG needs cairosvg)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from forge_tui.records.command import Acknowledgement, Command
from forge_tui.store.reader import Reader
from forge_tui.tui.app import ForgeApp

HERE = Path(__file__).resolve().parent / "screens"
SIZES = ((200, 60), (120, 40), (80, 24))


async def nobody(command: Command) -> Acknowledgement:
    return Acknowledgement(0, "refused", "a picture takes no commands")


async def take(session: Path) -> None:
    for width, height in SIZES:
        reader = Reader(session)
        app = ForgeApp(reader, nobody, True)
        async with app.run_test(size=(width, height)) as pilot:
            await pilot.pause(0.5)
            await pilot.press("j", *(["2", "b"] if width > 100 else []))
            await pilot.pause(1.0)
            svg = app.export_screenshot(title="forge-tui")
        reader.close()
        target = HERE / f"{width}x{height}.svg"
        target.write_text(svg)
        try:
            import cairosvg  # knows no web fonts: the picture needs an installed monospace font
        except ImportError:
            continue
        cairosvg.svg2png(
            bytestring=svg.replace("Fira Code", "DejaVu Sans Mono").encode(),
            write_to=str(target.with_suffix(".png")),
            output_width=1600 if width > 100 else 1000,
        )
        target.unlink()


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    asyncio.run(take(Path(sys.argv[1])))
