"""The slots of the screen: a line each, why one of them is slow, and more of one."""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap

from rich.text import Text

from strata_cli.ui.look import BAD, COMPACT, FAIR, FULL, GOOD, Look, clip, clock, num, percent, rate_style
from strata_cli.ui.plots import bar, keeps_line
from strata_cli.ui.snapshot import SlotLine, Snapshot


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    cell: Callable[[SlotLine, Snapshot, Look], tuple[str, str]]
    right: bool = False


def _state(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    style = {"decode": GOOD, "prompt": "cyan", "sat out": FAIR}.get(v.state, "dim")
    return v.state, style


def _progress(v: SlotLine) -> tuple[int, int | None]:
    """Tokens against their limit: of the prompt while it is read, of the answer afterwards."""
    return (v.prompt_done, v.prompt_tokens) if v.state == "prompt" else (v.tokens, v.max_tokens)


def _tokens(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    done, limit = _progress(v)
    return (f"{done}/{limit}" if limit else str(done)) if v.request else "", ""


def _tokens_bar(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    done, limit = _progress(v)
    gauge = bar(done / limit, 6, ascii=look.ascii) if limit else " " * 6
    return f"{gauge} {_tokens(v, s, look)[0]}" if v.request else "", "cyan" if v.state == "prompt" else ""


def _lengths(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    return str(v.L) if v.state in ("decode", "sat out") else "", "bold"


def _why(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    return v.reason, "" if v.reason in ("fits", "probe", "prefill", "") else FAIR


def _keeps(count: int) -> Callable[[SlotLine, Snapshot, Look], tuple[str, str]]:
    def cell(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
        return keeps_line(v.keeps[-count:], s.header.spec + 1, ascii=look.ascii), rate_style(v.acceptance)

    return cell


def _accept(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    return (percent(v.acceptance, look) if v.request else ""), rate_style(v.acceptance)


def _by_position(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    known = ["--" if p is None else f"{min(round(p * 100), 99):2}" for p in v.conditional[:4]]
    return " ".join(known), "dim"


def _speed(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    return (num(v.tok_per_s, look, 1) if v.request else ""), BAD if _is_slow(v, s) else ""


def _elapsed(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    return (clock(v.elapsed_s, look) if v.request else ""), "dim"


def _name(v: SlotLine, s: Snapshot, look: Look) -> tuple[str, str]:
    return look.plain(v.request), ""


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


def _is_slow(v: SlotLine, s: Snapshot) -> bool:
    return s.slow is not None and s.slow.slot == v.slot


def slot_lines(s: Snapshot, look: Look) -> list[tuple[int, Text]]:
    """(importance, line) of the title, of every slot, and of why one of them is slow."""
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
        lines += [(min(i, 1), clip(text, look, BAD)) for i, text in enumerate(folded)]
    return lines


def detail_lines(s: Snapshot, look: Look) -> list[Text]:
    """More of one slot (key l)."""
    v = next((v for v in s.slots if v.slot == s.detail), None)
    if v is None:
        return []
    if not v.request:
        return [clip(f"  slot {v.slot} is free", look)]
    cumulative = " ".join(f"{p:.2f}" for p in v.per_position) or look.dash
    conditional = " ".join("-" if p is None else f"{p:.2f}" for p in v.conditional) or look.dash
    reasons = ", ".join(f"{reason} {n}" for reason, n in v.reasons) or look.dash
    return [
        clip(text, look)
        for text in (
            f"  slot {v.slot}: {v.request}",
            f"  prompt {v.prompt_done}/{v.prompt_tokens or '?'} ({v.cached_tokens} from the prefix cache), "
            f"context {v.ctx}, {num(v.mean_keeps, look, 2)} tokens a window",
            f"  accepted by position: {cumulative}",
            f"  where the one before was: {conditional}",
            f"  reasons of the last {len(v.keeps)} windows: {reasons}",
        )
    ]
