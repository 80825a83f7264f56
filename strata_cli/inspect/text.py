"""A report on the terminal: the verdict first, then tables and plots."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from strata_cli.inspect.verdict import main_causes, speed
from strata_cli.ui.plots import bar, line_plot

Report = dict[str, Any]


def show(r: Report, console: Console, *, ascii: bool = False) -> None:
    """Print one report."""
    _verdict(r, console)
    if not r["windows"]:
        return
    _summary(r, console)
    _kinds(r, console)
    _acceptance(r, console)
    _slots(r, console)
    for key, title in (("L", "L (rows of a slot in a window; 0: sat out)"), ("keeps", "keeps (tokens it commits)")):
        _bars(title, [(value, n) for value, n in r[key].items()], console, ascii)
    _bars("why that L", list(r["reasons"].items()), console, ascii)
    _steps(r, console)
    _contexts(r, console)
    _over_time(r, console, ascii)
    _downgrades(r, console)


def compare(a: Report, b: Report, console: Console) -> None:
    """Print two reports side by side, with the ratio of B to A."""
    for r in (a, b):
        console.print(_line(f"{r['file']}: {speed(r)}", "bold"))
    different = settings_that_differ(a, b)
    note = "; ".join(f"{name}: {x!r} and {y!r}" for name, (x, y) in different.items())
    console.print(_line(f"settings that differ: {note or 'none that the files name'}"))
    console.print(_table("A and B", ("", "A", "B", "B / A"), comparison(a, b)))
    positions = [
        (str(j + 1), *(_share(p["conditional"]) if (p := _at(r["positions"], j)) else "-" for r in (a, b)))
        for j in range(max(len(a["positions"]), len(b["positions"])))
    ]
    console.print(_table("accepted where the one before was, by position", ("position", "A", "B"), positions))
    for key in ("L", "keeps", "reasons"):
        names = sorted({*a[key], *b[key]}, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else name))
        sums = [max(sum(r[key].values()), 1) for r in (a, b)]
        rows = [(n, *(_share(r[key].get(n, 0) / total) for r, total in zip((a, b), sums))) for n in names]
        console.print(_table(f"{key}, share of the slots' windows", (key, "A", "B"), rows))
    for r in (a, b):
        for cause in main_causes(r):
            console.print(_line(f"{r['file']}: {cause.title}: {cause.what}"))


MEASURES = (
    ("tok/s", "tok_per_s"),
    ("tokens", "tokens"),
    ("seconds", "seconds"),
    ("windows", "windows"),
    ("acceptance rate", "acceptance_rate"),
    ("mean acceptance length", "mean_acceptance_length"),
    ("slots in use", "mean_slots"),
    ("prompt rows", "prompt_rows"),
    ("prefix-cache tokens", "prefix_hit_tokens"),
)


def measures(r: Report) -> dict[str, float | None]:
    """The figures that are compared."""
    found = {name: r[key] for name, key in MEASURES}
    found["ms a window"] = r["busy_ms"] / r["windows"] if r["windows"] else None
    for phase, ms in r["phases_ms"].items():
        found[f"ms of {phase} a window"] = ms / r["windows"] if r["windows"] else None
    return found


def comparison(a: Report, b: Report) -> list[tuple[str, str, str, str]]:
    x, y = measures(a), measures(b)
    rows = []
    for name in dict.fromkeys([*x, *y]):
        left, right = x.get(name), y.get(name)
        ratio = f"{right / left:.3f}" if left and right is not None else "-"
        rows.append((name, _number(left, 3), _number(right, 3), ratio))
    return rows


def settings_that_differ(a: Report, b: Report) -> dict[str, tuple[Any, Any]]:
    """Settings, model, profile and version that are not the same in both files."""
    x, y = ({"model": r["model"], "profile": r["profile"], "version": r["version"], **r["config"]} for r in (a, b))
    names = dict.fromkeys([*x, *y])
    return {name: (x.get(name), y.get(name)) for name in names if x.get(name) != y.get(name)}


def _at(items: Sequence[Any], i: int) -> Any:
    return items[i] if i < len(items) else None


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=any(columns))
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*map(Text, row))
    return Group(Text(title, style="bold"), table)


def _verdict(r: Report, console: Console) -> None:
    console.print(_line(speed(r), "bold"))
    found = main_causes(r)
    for cause in found:
        console.print(_line(f"- {cause.title}: {cause.what}"))
        console.print(_line(f"  try: {cause.try_this}"))
    if r["windows"] and not found:
        console.print(_line("- nothing stands out: no cause reaches 5% of the run"))
    for note in r["notes"]:
        console.print(_line(f"note: {note}", "yellow"))
    console.print()


def _summary(r: Report, console: Console) -> None:
    cost = r["row_cost"]
    rows = [
        ("model, profile, version", ", ".join(str(r[k] or "-") for k in ("model", "profile", "version"))),
        ("tokens / requests", f"{r['tokens']:,} / {r['requests']:,}"),
        ("seconds, in windows", f"{r['seconds']:,.1f}, {r['busy_ms'] / 1000:,.1f}"),
        ("slots in use", _number(r["mean_slots"])),
        ("drafts: with a row, verified, accepted", f"{r['drafts']:,}, {r['verified']:,}, {r['accepted']:,}"),
        ("acceptance rate = accepted / verified", _share(r["acceptance_rate"])),
        ("mean acceptance length (golden token included)", _number(r["mean_acceptance_length"])),
        ("rows, prompt rows, padding", f"{r['rows']:,}, {r['prompt_rows']:,}, {r['padding_rows']:,}"),
        ("prompt tokens from the prefix cache", f"{r['prefix_hit_tokens']:,}"),
    ]
    if cost:
        fit = f"{cost['window_ms']:.2f} ms {cost['row_ms']:+.3f} ms a row"
        rows.append(("a window without prompts costs (padding is rows)", fit))
    if r["mean_experts"] is not None:
        rows.append(("experts touched in a window", _number(r["mean_experts"], 1)))
    console.print(_table("summary", ("", ""), rows))
    console.print()


def _kinds(r: Report, console: Console) -> None:
    rows = [
        (
            kind,
            f"{k['windows']:,}",
            f"{k['tokens']:,}",
            f"{k['rows'] / k['windows']:.1f}",
            *(_number(k[key]) for key in ("ms_mean", "ms_p50", "ms_p99")),
            _share(k["ms"] / r["busy_ms"] if r["busy_ms"] else None),
        )
        for kind, k in r["kinds"].items()
    ]
    columns = ("kind", "windows", "tokens", "rows", "mean", "p50", "p99", "of time")
    console.print(_table("time by kind of window (rows: mean; times: ms a window)", columns, rows))
    console.print()
    phases = [name for name in r["phases_ms"] if name != "other"]
    rows = [
        (kind, *(_number(k["phases_ms"].get(name, 0.0) / k["windows"]) for name in phases))
        for kind, k in r["kinds"].items()
    ]
    total = max(sum(r["phases_ms"].values()), 1e-9)
    rows.append(("of time", *(_share(r["phases_ms"][name] / total) for name in phases)))
    if phases:
        console.print(_table("time by phase (ms a window)", ("kind", *phases), rows))
        console.print()


def _acceptance(r: Report, console: Console) -> None:
    rows = [
        (
            str(p["position"]),
            f"{p['verified']:,}",
            f"{p['reached']:,}",
            f"{p['accepted']:,}",
            _share(p["cumulative"]),
            _share(p["conditional"]),
        )
        for p in r["positions"]
    ]
    title = "acceptance by position (conditional: of the times it was reached)"
    if rows:
        columns = ("position", "verified", "reached", "accepted", "cumulative", "conditional")
        console.print(_table(title, columns, rows))
        console.print()


def _slots(r: Report, console: Console) -> None:
    slow = r["slow_slot"]
    rows = [
        (
            f"{s['slot']}{' slow' if slow and slow['slot'] == s['slot'] else ''}",
            f"{s['requests']:,}",
            f"{s['tokens']:,}",
            _number(s["tok_per_s"], 1),
            _number(s["tokens_per_window"]),
            _number(s["mean_L"]),
            _share(s["acceptance_rate"]),
            f"{s['sat_out']:,}",
            next(iter(s["reasons"]), "-"),
        )
        for s in r["slots"]
    ]
    columns = ("slot", "requests", "tokens", "tok/s", "keeps", "L", "accepted", "sat out", "why")
    console.print(_table("slots (keeps: tokens a window, those it sat out included)", columns, rows))
    console.print()
    depth = len(r["positions"])
    rates = [
        (str(s["slot"]), *(_share(p["conditional"]) if (p := _at(s["positions"], j)) else "-" for j in range(depth)))
        for s in r["slots"]
    ]
    if depth:
        title = "conditional acceptance by slot and position"
        console.print(_table(title, ("slot", *(str(j + 1) for j in range(depth))), rates))
        console.print()


def _bars(title: str, counts: Sequence[tuple[str, int]], console: Console, ascii: bool) -> None:
    total = sum(n for _, n in counts)
    if total:
        rows = [(name, f"{n:,}", _share(n / total), bar(n / total, 30, ascii=ascii)) for name, n in counts]
        console.print(_table(title, ("", "windows", "share", ""), rows))
        console.print()


def _steps(r: Report, console: Console) -> None:
    rows = [
        (
            f"{'prompts, up to ' if s['prompt'] else ''}{s['rows_up_to']}",
            f"{s['windows']:,}",
            *(_number(s[key]) for key in ("ms_mean", "ms_p50", "ms_p90")),
            _number(s["tokens"] / s["ms_mean"] / s["windows"] * 1000 if s["ms_mean"] else None, 1),
        )
        for s in r["steps"]
        if s["windows"] >= r["windows"] / 1000  # the page has them all
    ]
    console.print(_table("step_ms against rows", ("rows", "windows", "mean", "p50", "p90", "tok/s"), rows))
    console.print()


def _contexts(r: Report, console: Console) -> None:
    rows = [
        (
            f"{c['from']:,} to {c['to']:,}",
            f"{c['windows']:,}",
            _share(c["acceptance_rate"]),
            _number(c["mean_acceptance_length"]),
        )
        for c in r["contexts"]
    ]
    if len(rows) > 1:
        console.print(_table("by length of the context", ("tokens", "windows", "accepted", "mean length"), rows))
        console.print()


def _over_time(r: Report, console: Console, ascii: bool) -> None:
    points = timeline(r)
    if len(points) > 1:
        console.print(_line("tok/s over the seconds", "bold"))
        width = min(console.width, 100)
        xs, ys = [p["t"] for p in points], [p["tok_per_s"] for p in points]
        for line in line_plot(xs, ys, width=width, height=10, ascii=ascii):
            console.print(Text(line, no_wrap=True))


def timeline(r: Report) -> list[dict[str, Any]]:
    """The points to draw: a first or last stretch that is mostly outside the run says nothing."""
    return [p for p in r["timeline"]["points"] if p["seconds"] >= r["timeline"]["width_s"] / 2]


def _downgrades(r: Report, console: Console) -> None:
    if r["chain_off"]:
        off = r["chain_off"]
        text = f"! drafts off since second {off['t']:.1f}, for {off['windows']:,} windows: {off['why']}"
        console.print(_line(text, "bold red"))
    for d in r["downgrades"]:
        console.print(_line(f"! since second {d['t']:.1f}: {d['what']}", "bold red"))
