"""A report as one HTML page that needs nothing else: tables, and plots as SVG drawn here."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from strata_cli.inspect.text import comparison, settings_that_differ, timeline
from strata_cli.inspect.verdict import causes, speed

Report = dict[str, Any]
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 220, 52, 26
COLOURS = ("#4063d8", "#389826", "#cb3c33", "#9558b2", "#b8860b", "#008b8b", "#888888")

STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1360px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.3em } h2 { font-size: 1.05em; margin: 1.6em 0 .3em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .15em .8em .15em 0; text-align: right; border-bottom: 1px solid var(--line) }
td:first-child, th:first-child { text-align: left }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1em 2em }
svg { width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: currentColor }
.verdict li { margin: .3em 0 } .try { opacity: .75 } .bad { color: #cb3c33 }
"""


def page(reports: Sequence[Report]) -> str:
    """The page of one report, or of two side by side."""
    parts = [_compared(*reports)] if len(reports) == 2 else []
    parts += [_report(r) for r in reports]
    title = " and ".join(r["file"] for r in reports)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>strata inspect {escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _compared(a: Report, b: Report) -> str:
    different = [(name, str(x), str(y)) for name, (x, y) in settings_that_differ(a, b).items()]
    settings = _table(("setting", "A", "B"), different) if different else "<p>no setting differs</p>"
    return f"<h1>A: {escape(a['file'])}, B: {escape(b['file'])}</h1>{settings}" + _table(
        ("", "A", "B", "B / A"), comparison(a, b)
    )


def _report(r: Report) -> str:
    found = causes(r)
    items = "".join(
        f'<li><b>{escape(c.title)}</b>: {escape(c.what)}<br><span class="try">try: {escape(c.try_this)}</span></li>'
        for c in found
    )
    lines = [f"<h1>{escape(r['file'])}</h1><p><b>{escape(speed(r))}</b></p>"]
    lines.append(f'<ul class="verdict">{items}</ul>' if items else "<p>nothing stands out</p>")
    lines += [f"<p>note: {escape(note)}</p>" for note in r["notes"]]
    off = r["chain_off"]
    lines += [f'<p class="bad">drafts off since second {off["t"]:.1f}: {escape(off["why"])}</p>'] if off else []
    lines += [f'<p class="bad">since second {d["t"]:.1f}: {escape(d["what"])}</p>' for d in r["downgrades"]]
    return "".join(lines) + _plots(r) + _tables(r) if r["windows"] else "".join(lines)


def _plots(r: Report) -> str:
    points = timeline(r)
    decode = [s for s in r["steps"] if not s["prompt"]]
    prompt = [s for s in r["steps"] if s["prompt"]]
    by_slot = [(f"slot {s['slot']}", [p["conditional"] for p in s["positions"]]) for s in r["slots"]]
    plots = [
        ("tok/s over the seconds", lines([("tok/s", [(p["t"], p["tok_per_s"]) for p in points])])),
        (
            "acceptance rate over the seconds",
            lines(
                [("", [(p["t"], p["acceptance_rate"]) for p in points if p["acceptance_rate"] is not None])], top=1.0
            ),
        ),
        (
            "accepted where the one before was, by position and slot",
            lines(
                [(name, [(j + 1, v) for j, v in enumerate(rates) if v is not None]) for name, rates in by_slot], top=1.0
            ),
        ),
        (
            "ms of a window against its rows, no prompts",
            lines(
                [
                    ("mean", [(s["rows_up_to"], s["ms_mean"]) for s in decode]),
                    ("p90", [(s["rows_up_to"], s["ms_p90"]) for s in decode]),
                ]
            ),
        ),
        (
            "ms of a window with prompts against its rows",
            lines([("", [(s["rows_up_to"], s["ms_mean"]) for s in prompt])]),
        ),
        ("L, slots' windows", bars(list(r["L"].items()))),
        ("keeps, slots' windows", bars(list(r["keeps"].items()))),
        ("why that L, slots' windows", bars(list(r["reasons"].items()))),
        ("time by phase, ms", bars([(name, ms) for name, ms in r["phases_ms"].items()])),
        ("time by kind, ms", bars([(kind, k["ms"]) for kind, k in r["kinds"].items()])),
    ]
    figures = "".join(f"<div><h2>{escape(title)}</h2>{svg}</div>" for title, svg in plots if svg)
    return f'<div class="plots">{figures}</div>'


def _tables(r: Report) -> str:
    def keyed(title: str, rows: Sequence[dict[str, Any]]) -> str:
        if not rows:
            return ""
        names = [name for name, value in rows[0].items() if not isinstance(value, list | dict)]
        cells = [[_cell(row[name]) for name in names] for row in rows]
        return f"<h2>{escape(title)}</h2>" + _table(names, cells)

    plain = {name: value for name, value in r.items() if not isinstance(value, list | dict)}
    kinds = [{"kind": kind, **k} for kind, k in r["kinds"].items()]
    return (
        keyed("slots", r["slots"])
        + keyed("acceptance by position", r["positions"])
        + keyed("kinds of windows", kinds)
        + keyed("step_ms against rows", r["steps"])
        + keyed("by length of the context", r["contexts"])
        + "<h2>all figures</h2>"
        + _table(("", ""), [(name, _cell(value)) for name, value in plain.items()])
        + "<h2>settings</h2>"
        + _table(("", ""), [(name, str(value)) for name, value in r["config"].items()])
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else "-" if value is None else str(value)
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _frame(body: str, top: float, labels: Iterable[tuple[float, str]]) -> str:
    """An SVG with a y axis from 0 to `top` and labels under it at the given x."""
    lines = []
    for share in (0.0, 0.5, 1.0):
        y = (HEIGHT - BOTTOM) * (1 - share) + 10 * share
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="currentColor" opacity=".2"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:,.4g}</text>')
    for x, text in labels:
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(text)}</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(lines)}{body}</svg>'


def _y(value: float, top: float) -> float:
    return 10 + (HEIGHT - BOTTOM - 10) * (1 - min(value / top, 1.0))


def lines(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], top: float | None = None) -> str:
    """Lines through (x, y) points, each with its name; "" without points. y runs from 0 to `top` or the largest."""
    xs = [x for _, points in series for x, _ in points]
    if not xs:
        return ""
    top = top or max(max(y for _, points in series for _, y in points), 1e-9)
    low, span = min(xs), max(max(xs) - min(xs), 1e-9)

    def place(x: float) -> float:
        return LEFT + 10 + (x - low) / span * (WIDTH - LEFT - 30)

    body, names = "", 0
    for i, (name, points) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{place(x):.1f},{_y(y, top):.1f}" for x, y in points)
        body += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        if len(points) <= 32:
            body += "".join(
                f'<circle cx="{place(x):.1f}" cy="{_y(y, top):.1f}" r="3" fill="{colour}"/>' for x, y in points
            )
        if name and points:
            body += f'<text x="{LEFT + 14 + 90 * names}" y="20" style="fill:{colour}">{escape(name)}</text>'
            names += 1
    middle = sorted({low, low + span / 2, low + span})
    return _frame(body, top, [(place(x), f"{x:,.4g}") for x in middle])


def bars(counts: Sequence[tuple[str, float]]) -> str:
    """One bar a name; "" where nothing was counted."""
    top = max((n for _, n in counts), default=0.0)
    if not top:
        return ""
    step = (WIDTH - LEFT - 10) / len(counts)
    body, labels = "", []
    for i, (name, n) in enumerate(counts):
        x, y = LEFT + 5 + i * step, _y(n, top)
        body += (
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" '
            f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{COLOURS[0]}"><title>{escape(name)}: {n:,.0f}</title></rect>'
        )
        labels.append((x + step / 2, name))
    return _frame(body, top, labels)
