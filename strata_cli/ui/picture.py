"""A frame of the screen as a picture."""

import re
from io import StringIO
from pathlib import Path

from rich.console import Console

from strata_cli.ui.dashboard import render
from strata_cli.ui.snapshot import Snapshot


def save_svg(snapshot: Snapshot, path: Path, *, width: int = 120, height: int = 24, title: str = "strata run") -> None:
    """Write a frame as an SVG picture of a terminal. It names no font to fetch: the reader's monospace font serves."""
    console = Console(
        record=True, width=width, height=height, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(render(snapshot, width, height))
    svg = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", console.export_svg(title=title), flags=re.DOTALL)
    path.write_text(svg.replace("Fira Code", "ui-monospace, Menlo, Consolas"), encoding="utf-8")
