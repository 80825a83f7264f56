"""Plots in text: sparklines, bars, a line plot. Every one has an ASCII form; colour is never part of the meaning."""

from collections.abc import Sequence
from math import isfinite

LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*#@"
SAT_OUT = "·"


def sparkline(values: Sequence[float | None], *, top: float | None = None, ascii: bool = False) -> str:
    """One character a value, on a scale from 0 to `top` (default: the largest). None is a gap."""
    levels = ASCII_LEVELS if ascii else LEVELS
    known = [v for v in values if v is not None and isfinite(v)]
    scale = top if top is not None else max(known, default=0.0)
    return "".join(" " if v is None or not isfinite(v) else levels[_level(v, scale, len(levels))] for v in values)


def _level(value: float, scale: float, levels: int) -> int:
    return max(0, min(levels - 1, round(value / scale * (levels - 1)))) if scale > 0 else 0


def keeps_line(keeps: Sequence[int], most: int, *, ascii: bool = False) -> str:
    """Tokens per window as one character each: a bar (ASCII: the digit, + above 9); a window that was sat out is a dot.

    `most`: the tokens of a full window (spec T + 1), which fill the character.
    """
    if ascii:
        return "".join("." if k == 0 else str(k) if k <= 9 else "+" for k in keeps)
    top = max(most, 2)
    return "".join(SAT_OUT if k == 0 else LEVELS[max(0, min(7, round((k - 1) / (top - 1) * 7)))] for k in keeps)


def bar(share: float, width: int, *, ascii: bool = False) -> str:
    """A bar of `width` characters, `share` (0 to 1) of it filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return ("#" * filled + "-" * (width - filled)) if ascii else ("█" * filled + "░" * (width - filled))


PHASE_MARKS = {"draft": "░", "verify": "█", "sample": "▒", "commit": "▓", "plan": "-", "host": "·", "other": " "}
ASCII_MARKS = {"draft": "d", "verify": "V", "sample": "s", "commit": "c", "plan": "p", "host": "h", "other": "."}


def stacked(parts: Sequence[tuple[str, float]], width: int, *, ascii: bool = False) -> str:
    """Shares (name, 0 to 1) side by side in `width` characters, each phase in its own mark."""
    marks = ASCII_MARKS if ascii else PHASE_MARKS
    out, reached = "", 0.0
    for name, share in parts:
        reached += share
        out += marks.get(name, "?") * (round(reached * width) - len(out))
    return out


def line_plot(xs: Sequence[float], ys: Sequence[float], *, width: int, height: int, ascii: bool = False) -> list[str]:
    """y over x as `height` lines of text and an axis, y from 0. Uses plotext (6 or later) where it is installed."""
    if not xs:
        return []
    return (None if ascii else _plotext(xs, ys, width, height)) or _columns(xs, ys, width, height, ascii)


def _plotext(xs: Sequence[float], ys: Sequence[float], width: int, height: int) -> list[str] | None:
    try:
        import plotext
    except ImportError:
        return None
    figure = getattr(plotext, "figure", None)
    if figure is None or not hasattr(figure, "signal"):  # older than 6: another interface
        return None
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    top = max(ys)
    figure.ruler("y").lim(0, top)
    figure.ruler("y").ticks([0, top / 2, top], [f"{y:.3g}" for y in (0, top / 2, top)])
    figure.draw(figure.signal(list(xs), list(ys)).lines())
    return plotext.uncolorize(str(figure.build())).splitlines()


def _columns(xs: Sequence[float], ys: Sequence[float], width: int, height: int, ascii: bool) -> list[str]:
    """One column a stretch of x, as high as the mean of its values."""
    top = max(max(ys), 1e-9)
    label = len(f"{top:.3g}")
    columns = max(width - label - 2, 1)
    low, span = xs[0], max(xs[-1] - xs[0], 1e-9)
    cells: list[list[float]] = [[] for _ in range(columns)]
    for x, y in zip(xs, ys, strict=True):
        cells[min(int((x - low) / span * columns), columns - 1)].append(y)
    heights, last = [], 0.0
    for cell in cells:  # a column without a value repeats its neighbour's
        last = sum(cell) / len(cell) / top * height if cell else last
        heights.append(last)
    levels = ASCII_LEVELS if ascii else LEVELS
    lines = []
    for row in range(height, 0, -1):
        text = "".join(
            levels[-1] if h >= row else levels[_level(h - row + 1, 1.0, len(levels))] if h > row - 1 else " "
            for h in heights
        )
        name = f"{top:.3g}" if row == height else "0" if row == 1 else ""
        lines.append(f"{name:>{label}} {'|' if ascii else '│'}{text.rstrip()}")
    left, right = f"{low:.4g}", f"{xs[-1]:.4g}"
    lines.append(" " * (label + 2) + left + " " * max(columns - len(left) - len(right), 1) + right)
    return lines
