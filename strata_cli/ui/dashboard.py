"""The screen: `render` turns a Snapshot into text, and knows nothing of terminals, clocks or engines.

Lines are put together by hand, not by rich tables: a frame costs a fraction, and every column stays where it is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import wrap

from rich.console import Console, Group, RenderableType
from rich.text import Text

from strata_cli.ui.plots import ASCII_MARKS, PHASE_MARKS, bar, keeps_line, sparkline, stacked
from strata_cli.ui.snapshot import SlotView, Snapshot

FULL, COMPACT = 120, 80  # the least columns of the layouts
GOOD, FAIR, BAD = "green", "yellow", "bold red"


@dataclass(frozen=True, slots=True)
class _Look:
    """How a frame is drawn."""

    width: int
    ascii: bool

    @property
    def dot(self) -> str:
        return " | " if self.ascii else " · "

    @property
    def dash(self) -> str:
        return "-" if self.ascii else "–"


def render(snapshot: Snapshot, width: int, height: int, *, ascii: bool = False) -> RenderableType:
    """One frame, at most `width` columns and `height` lines; what matters least is left out first when lines run short.

    Layouts: full from 120 columns, compact from 80, one short line a slot below.
    """
    look = _Look(width, ascii)
    s = snapshot
    # (importance, line): 0 stays longest
    lines: list[tuple[int, Text]] = [(2, line) for line in _head(s, look)]
    lines.append((5, Text("")))
    lines += _slots(s, look)
    lines += [(1, line) for line in _detail(s, look)]
    lines.append((5, Text("")))
    lines += _totals(s, look)
    lines.append((0, _queue(s, look)))
    lines += [(1, _clip(f"! {text}", look, BAD)) for text in s.downgrades]
    lines += [(3, _clip(text, look, "dim")) for text in s.notes]
    lines.append((1, _keys(s, look)))
    return Group(*_fit(lines, height, look))


def _fit(lines: list[tuple[int, Text]], height: int, look: _Look) -> list[Text]:
    """Leave out the least important lines, from the bottom, until the frame fits."""
    drop = len(lines) - height
    for importance in (5, 4, 3, 2, 1):
        for i in range(len(lines) - 1, -1, -1):
            if drop <= 0:
                break
            if lines[i][0] == importance:
                del lines[i]
                drop -= 1
    kept = [line for _, line in lines]
    if len(kept) > height > 0:  # more slots than lines
        hidden = len(kept) - height + 1
        kept[height - 2 : len(kept) - 1] = [_clip(f"... {hidden} more lines", look, "dim")] if height > 1 else []
    return kept[:height]


def _clip(text: str, look: _Look, style: str = "") -> Text:
    if look.ascii:
        text = text.encode("ascii", "replace").decode()
    line = Text(text, style=style, no_wrap=True, end="\n")
    line.truncate(look.width, overflow="crop" if look.ascii else "ellipsis")
    return line


def _join(parts: list[tuple[str, str]], look: _Look) -> Text:
    """Styled parts with a dot between them; empty ones are left out."""
    line = Text(no_wrap=True)
    for i, (text, style) in enumerate(part for part in parts if part[0]):
        if i:
            line.append(look.dot, "dim")
        line.append(text.encode("ascii", "replace").decode() if look.ascii else text, style)
    line.truncate(look.width, overflow="crop" if look.ascii else "ellipsis")
    return line


# --- numbers ---------------------------------------------------------------------------------------------------------


def _clock(seconds: float | None, look: _Look) -> str:
    if seconds is None:
        return look.dash
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def _num(value: float | None, look: _Look, digits: int = 0) -> str:
    return look.dash if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None, look: _Look) -> str:
    return look.dash if value is None else f"{value:.0%}"


def _gib(value: int | None, look: _Look) -> str:
    return look.dash if value is None else f"{value / 2**30:.1f}"


def _rate_style(rate: float | None) -> str:
    return "dim" if rate is None else GOOD if rate >= 0.6 else FAIR if rate >= 0.3 else BAD


# --- header ----------------------------------------------------------------------------------------------------------


def _head(s: Snapshot, look: _Look) -> list[Text]:
    h, g = s.header, s.gauges
    of_total = f" of {_gib(g.total_bytes, look)}" if g.total_bytes else ""
    memory = f"memory {_gib(g.used_bytes, look)}{of_total} GiB, {_gib(h.planned_bytes, look)} planned"
    what = [("strata", "bold"), (h.model, "bold cyan"), (h.format, ""), (h.device, "")]
    gauges = [(memory, "")]
    if h.gpu is not None:
        gauges.append((f"{_num(g.power_w, look)} W", ""))
        gauges.append((f"{_num(g.clock_mhz, look)} MHz", ""))
        gauges.append((f"{_num(g.temperature_c, look)} C" if look.ascii else f"{_num(g.temperature_c, look)} °C", ""))
    settings = [(text, "dim") for text in h.settings]
    if look.width >= FULL:
        lines = [_join([*what, *gauges], look)]
    elif look.width >= COMPACT:
        lines = [_join(what, look), _join(gauges, look)]
    else:
        return [_join(what[1:], look)]
    return [*lines, _join(settings, look)] if settings else lines


# --- slots -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    cell: Callable[[SlotView, Snapshot, _Look], tuple[str, str]]
    right: bool = False


def _state(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    style = {"decode": GOOD, "prompt": "cyan", "sat out": FAIR}.get(v.state, "dim")
    return v.state, style


def _progress(v: SlotView) -> tuple[int, int | None]:
    """Tokens against their limit: of the prompt while it is read, of the answer afterwards."""
    return (v.prompt_done, v.prompt_tokens) if v.state == "prompt" else (v.tokens, v.max_tokens)


def _tokens(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    done, limit = _progress(v)
    return (f"{done}/{limit}" if limit else str(done)) if v.request else "", ""


def _tokens_bar(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    done, limit = _progress(v)
    gauge = bar(done / limit, 6, ascii=look.ascii) if limit else " " * 6
    return f"{gauge} {_tokens(v, s, look)[0]}" if v.request else "", "cyan" if v.state == "prompt" else ""


def _lengths(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    return str(v.L) if v.state in ("decode", "sat out") else "", "bold"


def _why(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    return v.reason, "" if v.reason in ("fits", "probe", "prefill", "") else FAIR


def _keeps(count: int) -> Callable[[SlotView, Snapshot, _Look], tuple[str, str]]:
    def cell(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
        return keeps_line(v.keeps[-count:], s.header.spec + 1, ascii=look.ascii), _rate_style(v.acceptance)

    return cell


def _accept(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    return (_percent(v.acceptance, look) if v.request else ""), _rate_style(v.acceptance)


def _by_position(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    known = ["--" if p is None else f"{min(round(p * 100), 99):2}" for p in v.conditional[:4]]
    return " ".join(known), "dim"


def _speed(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    return (_num(v.tok_per_s, look, 1) if v.request else ""), BAD if _is_slow(v, s) else ""


def _elapsed(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    return (_clock(v.elapsed_s, look) if v.request else ""), "dim"


def _name(v: SlotView, s: Snapshot, look: _Look) -> tuple[str, str]:
    return v.request.encode("ascii", "replace").decode() if look.ascii else v.request, ""


REST = 0  # a width that takes what the others leave
COLUMNS = {
    FULL: (
        _Column("state", 7, _state),
        _Column("request", REST, _name),
        _Column("tokens", 16, _tokens_bar),
        _Column("L", 2, _lengths, right=True),
        _Column("why", 10, _why),
        _Column("keeps, last 32", 32, _keeps(32)),
        _Column("acc", 4, _accept, right=True),
        _Column("% by pos", 11, _by_position),
        _Column("tok/s", 6, _speed, right=True),
        _Column("time", 5, _elapsed, right=True),
    ),
    COMPACT: (
        _Column("state", 7, _state),
        _Column("request", REST, _name),
        _Column("tokens", 9, _tokens, right=True),
        _Column("L", 2, _lengths, right=True),
        _Column("why", 10, _why),
        _Column("keeps", 16, _keeps(16)),
        _Column("acc", 4, _accept, right=True),
        _Column("tok/s", 6, _speed, right=True),
    ),
    0: (
        _Column("state", 7, _state),
        _Column("tokens", 9, _tokens, right=True),
        _Column("L", 2, _lengths, right=True),
        _Column("why", REST, _why),
        _Column("acc", 4, _accept, right=True),
        _Column("tok/s", 6, _speed, right=True),
    ),
}


def _is_slow(v: SlotView, s: Snapshot) -> bool:
    return s.slow is not None and s.slow.slot == v.slot


def _slots(s: Snapshot, look: _Look) -> list[tuple[int, Text]]:
    columns = COLUMNS[next(least for least in COLUMNS if look.width >= least)]
    left = look.width - 4 - sum(c.width + 1 for c in columns)
    widths = [c.width or max(left, 0) for c in columns]
    title = Text("slot", style="dim", no_wrap=True)
    for c, width in zip(columns, widths):
        title.append(" " + (c.title.rjust(width) if c.right else c.title.ljust(width))[:width])
    lines = [(4, title)]
    for v in s.slots:
        slow = _is_slow(v, s)
        line = Text(f"{'!' if slow else ' '}{v.slot:>2} ", style=BAD if slow else "", no_wrap=True)
        for c, width in zip(columns, widths):
            text, style = c.cell(v, s, look)
            line.append(" ")
            line.append((text.rjust(width) if c.right else text.ljust(width))[:width], style)
        lines.append((0, line))
    if s.slow is not None:
        rates = f"{s.slow.tokens_per_window:.1f} tokens a window, the others {s.slow.others:.1f}"
        whole = f"! slot {s.slow.slot} is slow: {s.slow.why} ({rates})"
        folded = wrap(whole, look.width, subsequent_indent="  ")
        lines += [(min(i, 1), _clip(text, look, BAD)) for i, text in enumerate(folded)]
    return lines


def _detail(s: Snapshot, look: _Look) -> list[Text]:
    """More of one slot (key l)."""
    v = next((v for v in s.slots if v.slot == s.detail), None)
    if v is None:
        return []
    if not v.request:
        return [_clip(f"  slot {v.slot} is free", look)]
    cumulative = " ".join(f"{p:.2f}" for p in v.per_position) or look.dash
    conditional = " ".join("-" if p is None else f"{p:.2f}" for p in v.conditional) or look.dash
    reasons = ", ".join(f"{reason} {n}" for reason, n in v.reasons) or look.dash
    return [
        _clip(text, look)
        for text in (
            f"  slot {v.slot}: {v.request}",
            f"  prompt {v.prompt_done}/{v.prompt_tokens or '?'} ({v.cached_tokens} from the prefix cache), "
            f"context {v.ctx}, {_num(v.mean_keeps, look, 2)} tokens a window",
            f"  accepted by position: {cumulative}",
            f"  where the one before was: {conditional}",
            f"  reasons of the last {len(v.keeps)} windows: {reasons}",
        )
    ]


# --- totals ----------------------------------------------------------------------------------------------------------


def _totals(s: Snapshot, look: _Look) -> list[tuple[int, Text]]:
    kinds = look.dot.join(f"{kind} {rate:.1f}" for kind, rate in s.windows_per_s) or look.dash
    spark = sparkline(s.history[-(30 if look.width >= COMPACT else 8) :], ascii=look.ascii)
    rate = [(f"{_num(s.tok_per_s, look, 1)} tok/s", "bold"), (spark, "cyan")]
    accept = (f"accepted {_percent(s.acceptance, look)}", _rate_style(s.acceptance))
    length = (f"{_num(s.mean_acceptance_length, look, 2)} tokens a window and slot", "")
    cache = f"prefix cache {s.cached_tokens:,} tokens, {s.cached_requests} hits"
    if look.width < COMPACT:
        return [(0, _join([*rate, accept], look))]
    shares = [(name, share) for name, share in s.phases if share >= (0.005 if look.width >= FULL else 0.05)]
    marks = ASCII_MARKS if look.ascii else PHASE_MARKS
    legend = "  ".join(f"{marks.get(name, '?')} {name} {share:.0%}" for name, share in shares)
    split = stacked(s.phases, max(look.width - len(legend) - 18, 10), ascii=look.ascii) if shares else ""
    return [
        (0, _join([*rate, length, accept], look)),
        (3, _clip(f"windows/s  {kinds}{look.dot}{cache}", look)),
        (2, _clip(f"window's time  {split}  {legend}" if split else "window's time  " + look.dash, look)),
    ]


def _queue(s: Snapshot, look: _Look) -> Text:
    waiting = max(s.total - s.done - s.active, 0)
    failed = f", {s.failed} failed" if s.failed else ""
    parts = [
        (f"{s.done}/{s.total} done{failed}", "bold red" if s.failed else "bold"),
        (f"{s.active} active", ""),
        (f"{waiting} waiting", ""),
        (f"ETA {_clock(s.eta_s, look)}", ""),
        (f"{_clock(s.elapsed_s, look)} gone", ""),
    ]
    line = Text(bar(s.done / s.total if s.total else 0.0, 20 if look.width >= COMPACT else 6, ascii=look.ascii) + " ")
    line.append_text(_join(parts, look))
    line.no_wrap = True
    line.truncate(look.width)
    return line


def _keys(s: Snapshot, look: _Look) -> Text:
    if s.stopping:
        return _clip(f"stopping: {s.active} running requests finish first. Ctrl-C stops now", look, FAIR)
    if s.paused:
        return _clip("PAUSED: no new request is admitted. p goes on", look, FAIR)
    return _clip("q finish and stop   p pause admission   l a slot in detail", look, "dim")


def save_svg(snapshot: Snapshot, path: Path, *, width: int = 120, height: int = 24, title: str = "strata run") -> None:
    """Write a frame as an SVG picture of a terminal. It names no font to fetch: the reader's monospace font serves."""
    console = Console(
        record=True, width=width, height=height, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(render(snapshot, width, height))
    svg = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", console.export_svg(title=title), flags=re.DOTALL)
    path.write_text(svg.replace("Fira Code", "ui-monospace, Menlo, Consolas"), encoding="utf-8")
