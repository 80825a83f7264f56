"""The screen: `render` turns a Snapshot into text, and knows nothing of terminals, clocks or engines.

Lines are put together by hand, not by rich tables: a frame costs a fraction, and every column stays where it is.
"""

from rich.console import Group, RenderableType
from rich.text import Text

from strata_cli.ui.look import BAD, COMPACT, FAIR, FULL, Look, clip, clock, gib, join, num, percent, rate_style, size
from strata_cli.ui.plots import ASCII_MARKS, PHASE_MARKS, bar, sparkline, stacked
from strata_cli.ui.slots import detail_lines, slot_lines
from strata_cli.ui.snapshot import Snapshot


def render(snapshot: Snapshot, width: int, height: int, *, ascii: bool = False) -> RenderableType:
    """One frame, at most `width` columns and `height` lines; what matters least is left out first when lines run short.

    Layouts: full from 120 columns, compact from 80, one short line a slot below.
    """
    look = Look(width, ascii)
    s = snapshot
    # (importance, line): 0 stays longest
    lines: list[tuple[int, Text]] = [(2, line) for line in _head(s, look)]
    lines.append((5, Text("")))
    lines += slot_lines(s, look)
    lines += [(1, line) for line in detail_lines(s, look)]
    lines.append((5, Text("")))
    lines += _totals(s, look)
    lines.append((0, _queue(s, look)))
    lines += [(1, clip(f"! {text}", look, BAD)) for text in s.downgrades]
    lines += [(3, clip(text, look, "dim")) for text in s.notes]
    lines.append((1, _keys(s, look)))
    return Group(*_fit(lines, height, look))


def _fit(lines: list[tuple[int, Text]], height: int, look: Look) -> list[Text]:
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
        kept[height - 2 : len(kept) - 1] = [clip(f"... {hidden} more lines", look, "dim")] if height > 1 else []
    return kept[:height]


def _head(s: Snapshot, look: Look) -> list[Text]:
    h, g = s.header, s.gauges
    of_total = f" of {gib(g.total_bytes, look)}" if g.total_bytes else ""
    memory = f"memory {gib(g.used_bytes, look)}{of_total} GiB, {size(h.planned_bytes, look)} planned"
    what = [("strata", "bold"), (h.model, "bold cyan"), (h.format, ""), (h.device, "")]
    gauges = [(memory, "")]
    if h.gpu is not None:
        gauges.append((f"{num(g.power_w, look)} W", ""))
        gauges.append((f"{num(g.clock_mhz, look)} MHz", ""))
        gauges.append((f"{num(g.temperature_c, look)} C" if look.ascii else f"{num(g.temperature_c, look)} °C", ""))
    settings = [(text, "dim") for text in h.settings]
    if look.width >= FULL:
        lines = [join([*what, *gauges], look)]
    elif look.width >= COMPACT:
        lines = [join(what, look), join(gauges, look)]
    else:
        return [join(what[1:], look)]
    return [*lines, join(settings, look)] if settings else lines


def _totals(s: Snapshot, look: Look) -> list[tuple[int, Text]]:
    kinds = look.dot.join(f"{kind} {rate:.1f}" for kind, rate in s.windows_per_s) or look.dash
    spark = sparkline(s.history[-(30 if look.width >= COMPACT else 8) :], ascii=look.ascii)
    rate = [(f"{num(s.tok_per_s, look, 1)} tok/s", "bold"), (spark, "cyan")]
    accept = (f"accepted {percent(s.acceptance, look)}", rate_style(s.acceptance))
    length = (f"{num(s.mean_acceptance_length, look, 2)} tokens a window and slot", "")
    cache = f"prefix cache {s.cached_tokens:,} tokens, {s.cached_requests} hits"
    if look.width < COMPACT:
        return [(0, join([*rate, accept], look))]
    shares = [(name, share) for name, share in s.phases if share >= (0.005 if look.width >= FULL else 0.05)]
    marks = ASCII_MARKS if look.ascii else PHASE_MARKS
    legend = "  ".join(f"{marks.get(name, '?')} {name} {share:.0%}" for name, share in shares)
    split = stacked(s.phases, max(look.width - len(legend) - 18, 10), ascii=look.ascii) if shares else ""
    return [
        (0, join([*rate, length, accept], look)),
        (3, clip(f"windows/s  {kinds}{look.dot}{cache}", look)),
        (2, clip(f"window's time  {split}  {legend}" if split else "window's time  " + look.dash, look)),
    ]


def _queue(s: Snapshot, look: Look) -> Text:
    waiting = max(s.total - s.done - s.active, 0)
    failed = f", {s.failed} failed" if s.failed else ""
    parts = [
        (f"{s.done}/{s.total} done{failed}", "bold red" if s.failed else "bold"),
        (f"{s.active} active", ""),
        (f"{waiting} waiting", ""),
        (f"ETA {clock(s.eta_s, look)}", ""),
        (f"{clock(s.elapsed_s, look)} gone", ""),
    ]
    line = Text(bar(s.done / s.total if s.total else 0.0, 20 if look.width >= COMPACT else 6, ascii=look.ascii) + " ")
    line.append_text(join(parts, look))
    line.no_wrap = True
    line.truncate(look.width)
    return line


def _keys(s: Snapshot, look: Look) -> Text:
    if s.stopping:
        return clip(f"stopping: {s.active} running requests finish first. Ctrl-C stops now", look, FAIR)
    if s.paused:
        return clip("PAUSED: no new request is admitted. p goes on", look, FAIR)
    return clip("q finish and stop   p pause admission   l a slot in detail", look, "dim")
