"""The report of a benchmark as aligned text and as Markdown. No torch."""

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = ("arm", "tok/s", "rounds", "TTFT ms", "tok/s a request", "acceptance", "AL", "cumulative", "conditional")
DEFINITIONS = (
    "tok/s: completion tokens / time from the first arrival to the last token, median and extremes of the rounds",
    "TTFT: from a request's arrival to its first token",
    "acceptance: accepted / verified drafts; cumulative: accepted at j / windows that had a row for j; conditional: "
    "accepted at j / windows in which j - 1 was accepted",
    "AL (mean acceptance length): tokens a slot keeps per window, the certain one included",
    "a / b: tok/s of runs of the same round, median and extremes",
)


def markdown(report: Mapping[str, Any]) -> str:
    """The whole report as Markdown."""
    lines = ["# strata bench", "", f"`{report['command']}`", "", _about(report), ""]
    for kind in report["kinds"]:
        rows = [_cells(arm) for arm in kind["arms"]]
        lines += [f"## {kind['kind']}, {kind['requests']} requests", ""]
        lines += [_line(HEAD), _line(["---"] * len(HEAD)), *map(_line, rows), ""]
        lines += [f"- {text}" for text in _findings(kind)] + [""]
    return "\n".join([*lines, *(f"- {note}" for note in (*report["notes"], *DEFINITIONS)), ""])


def text(report: Mapping[str, Any]) -> str:
    """The whole report as aligned text."""
    lines = [_about(report)]
    for kind in report["kinds"]:
        rows = [HEAD, *(_cells(arm) for arm in kind["arms"])]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
        lines += ["", f"{kind['kind']}, {kind['requests']} requests"]
        for row in rows:
            cells = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
            lines.append("  ".join(cells).rstrip())
        lines += _findings(kind)
    return "\n".join([*lines, "", *(f"note: {note}" for note in report["notes"]), *DEFINITIONS])


def _about(report: Mapping[str, Any]) -> str:
    order = f"rounds: {report['rounds']}, in alternating order, after a warm-up"
    return f"{report['model']}; {order}; strata {report['version']}"


def _cells(arm: Mapping[str, Any]) -> tuple[str, ...]:
    spec = arm["spec"]
    return (
        arm["name"] + (" (saved)" if "saved" in arm else ""),
        f"{arm['median_tok_s']:.1f}",
        f"{min(arm['tok_s']):.1f}-{max(arm['tok_s']):.1f}",
        _number(arm["median_ttft_ms"], ".0f"),
        _number(arm["median_decode_tok_s"], ".1f"),
        _number(spec["acceptance_rate"], ".1%"),
        _number(spec["mean_acceptance_length"], ".2f"),
        " ".join(_number(rate, ".2f") for rate in spec["per_position"]) or "-",
        " ".join(_number(rate, ".2f") for rate in spec["conditional"]) or "-",
    )


def _findings(kind: Mapping[str, Any]) -> list[str]:
    """Ratios, whether the texts are the same, and what was turned down."""
    lines = [_ratio(pair) for pair in kind["ratios"]]
    first = kind["arms"][0]["name"]
    for arm in kind["same_tokens"]:
        other, n = arm["different"], arm["requests"]
        told = f"differ in {len(other)} of {n} requests, the first {other[0]}" if other else "are the same"
        lines.append(f"tokens of {arm['arm']} and {first} {told}")
    for arm in kind["arms"]:
        if not arm["steady"]:
            lines.append(f"tokens of {arm['name']} are not the same in all rounds")
        lines += [f"downgrade, {arm['name']}: {line}" for line in arm["downgrades"]]
    return lines


def _ratio(pair: Mapping[str, Any]) -> str:
    if pair["median"] is None:
        return f"{pair['arm']} / {pair['over']}: not to be had"
    spread = f"{pair['low']:.3f} to {pair['high']:.3f}" if pair["low"] is not None else "of medians, not of pairs"
    return f"{pair['arm']} / {pair['over']}: {pair['median']:.3f} ({spread})"


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
