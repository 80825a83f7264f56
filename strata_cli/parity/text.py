"""The report of a parity run as text and as JSON. No torch."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from strata_cli.parity.check import Cell, Difference, Report

SHOWN = 12  # differences written out; the JSON has them all
Spell = Callable[[int], str]  # a token id as text


def as_json(report: Report, model: str, device: str, prompts: int) -> dict[str, Any]:
    """Everything, one cell a way and manner."""
    return {
        "model": model,
        "device": device,
        "prompts": prompts,
        "equal": report.equal,
        "cells": [{**asdict(cell), "equal": cell.equal} for cell in report.cells],
        "differences": [asdict(d) for d in report.differences],
    }


def as_text(report: Report, model: str, device: str, prompts: int, spell: Spell) -> str:
    """A line a way, summed over the manners; then the differences."""
    names = list(dict.fromkeys(cell.way for cell in report.cells))
    manners = list(dict.fromkeys(cell.manner for cell in report.cells))
    width = max(map(len, names))
    lines = [
        f"{model} on {device}, {prompts} prompts, each against one slot without drafts and prefix cache; at",
        "; ".join(manners),
        "",
        f"{'':<{width}}  {'tokens':>9}  {'bits':>9}  {'drafts':>9}  {'accepted':>12}",
    ]
    for name in names:
        lines.append(f"{name:<{width}}  {_row([c for c in report.cells if c.way == name])}")
    lines += ["", "tokens, bits (of each committed row's logits), drafts (counts as when alone): requests that agree"]
    hits = sum(c.cached_tokens for c in report.cells if c.way == "prefix-cache hit")
    lines.append(f"prompt tokens taken from the prefix cache in its way: {hits}" + (NO_HIT if not hits else ""))
    lines += [_difference(d, spell) for d in report.differences[:SHOWN]]
    if len(report.differences) > SHOWN:
        lines.append(f"... and {len(report.differences) - SHOWN} more differences, see --json")
    lines.append("the text is the same in all ways" if report.equal else "DIFFERENT: the text depends on the speed")
    return "\n".join(lines)


NO_HIT = " (no prompt of 64 tokens or more: a hit was not tested)"


def _row(cells: list[Cell]) -> str:
    n = sum(c.compared for c in cells)
    drafts = [c.drafts for c in cells if c.drafts is not None]
    shown = (
        f"{sum(c.tokens for c in cells)}/{n}",
        f"{sum(c.bits for c in cells)}/{n}",
        f"{sum(drafts)}/{n}" if drafts else "-",
    )
    accepted = f"{sum(c.accepted for c in cells)}/{sum(c.drafted for c in cells)}"
    return "  ".join(f"{text:>9}" for text in shown) + f"  {accepted:>12}"


def _difference(d: Difference, spell: Spell) -> str:
    head = f"{d.manner}: {d.way}: request {d.request}: {d.what} differ"
    if d.position is None:
        return f"{head}; {d.note}"

    def side(token: int | None, margin: float | None) -> str:
        if token is None:
            return "the end"
        return f"{token} {spell(token)}" + (f" (logit margin {margin:.4g})" if margin is not None else "")

    base, way = (side(t, m) for t, m in zip(d.tokens, d.margins))
    return f"{head} at completion token {d.position}: base {base}, here {way}"
