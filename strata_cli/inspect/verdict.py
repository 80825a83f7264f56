"""The first lines of a report: how fast, what kept it from being faster, and what to try, each with its number."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Report = dict[str, Any]
WORTH_SAYING = 0.05  # a cause below this share of the run is left out


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that kept the run from being faster.

    `share`: an estimate of the part of the run it cost, 0 to 1; None where there is no honest estimate.
    """

    name: str
    share: float | None
    what: str
    try_this: str

    @property
    def title(self) -> str:
        return self.name if self.share is None else f"{self.name}, about {self.share:.0%}"


def speed(r: Report) -> str:
    """How fast, in one line."""
    if not r["windows"]:
        return "no windows: nothing ran, or the run ended before its first window"
    parts = [f"{_num(r['tok_per_s'])} tok/s: {r['tokens']:,} tokens in {r['seconds']:,.1f} s, {r['windows']:,} windows"]
    if r["mean_acceptance_length"] is not None:
        parts.append(f"{r['mean_acceptance_length']:.2f} tokens a slot and window")
    if r["acceptance_rate"] is not None:
        parts.append(f"{r['acceptance_rate']:.0%} of {r['verified']:,} drafts accepted")
    return ", ".join(parts)


def causes(r: Report) -> list[Cause]:
    """What cost most, first; only what is worth saying; what has no estimate comes last."""
    found = [cause for finder in FINDERS for cause in finder(r)] if r["windows"] else []
    worth = [c for c in found if c.share is None or c.share >= WORTH_SAYING]
    return sorted(worth, key=lambda c: -c.share if c.share is not None else 1.0)


def main_causes(r: Report, most: int = 3) -> list[Cause]:
    """The causes that cost most, and those without an estimate."""
    found = causes(r)
    return [c for i, c in enumerate(found) if i < most or c.share is None]


def verdict(r: Report) -> dict[str, Any]:
    """The first lines as data."""
    return {
        "speed": speed(r),
        "causes": [{"cause": c.name, "share": c.share, "what": c.what, "try": c.try_this} for c in causes(r)],
    }


def _num(value: float | None, digits: int = 1) -> str:
    return "?" if value is None else f"{value:,.{digits}f}"


def _wall_ms(r: Report) -> float:
    return max(r["seconds"] * 1000, r["busy_ms"], 1e-9)


def _prefill(r: Report) -> Iterator[Cause]:
    ms = sum(k["ms"] * k["prompt_rows"] / k["rows"] for k in r["kinds"].values() if k["prompt_rows"])
    if not ms:
        return
    speed = f"{r['prompt_rows']:,} prompt tokens read at {r['prompt_rows'] / ms * 1000:,.0f} tok/s"
    if r["config"].get("prefill_policy") == "immediate":
        hint = "--prefill-policy mixed (immediate makes the other slots wait for every prompt)"
    elif r["config"].get("prefix_cache") is False:
        hint = "--prefix-cache, if the prompts begin alike"
    elif not r["prefix_hit_tokens"]:
        hint = "put what the prompts share first: the prefix cache found 0 tokens to reuse"
    else:
        hint = f"--prefix-cache-mib: {r['prefix_hit_tokens']:,} tokens were reused so far"
    yield Cause("prefill", ms / _wall_ms(r), speed, hint)


def _acceptance(r: Report) -> Iterator[Cause]:
    rate = r["acceptance_rate"]
    decode = [k for k in r["kinds"].values() if k["rows"]]
    rows = sum(k["rows"] for k in decode)
    if rate is None or not rows:
        return
    phases = r["phases_ms"]
    verify = phases["verify"] if phases.get("verify") else r["busy_ms"]
    mean_row_ms = verify / rows
    row_ms = r["row_cost"]["row_ms"] if r["row_cost"] else mean_row_ms
    lost = (1 - rate) * (phases.get("draft", 0.0) + min(max(row_ms, 0.0), mean_row_ms) * r["verified"])
    what = f"{1 - rate:.0%} of {r['verified']:,} drafts were rejected ({rate:.0%} accepted)"
    weak = next((p for p in r["positions"] if p["conditional"] is not None and p["conditional"] < 0.5), None)
    spec = r["config"].get("spec")
    if r["config"].get("mtp_varlen") is False:
        hint = "let L adapt: drop --no-mtp-varlen"
    elif weak and weak["position"] > 1:
        hint = f"--spec {weak['position'] - 1}: draft {weak['position']} holds {weak['conditional']:.0%} of the time"
    elif weak:
        hint = f"--spec 0 as a comparison: even the first draft holds in {weak['conditional']:.0%} only"
    else:
        hint = f"--spec-min-p 0.3 (spec is {spec if spec is not None else 'not in the file'})"
    yield Cause("low acceptance", lost / _wall_ms(r), what, hint)


def _no_drafts(r: Report) -> Iterator[Cause]:
    """Most windows without a draft: why, and what the drafts that were tried came to."""
    slot_windows, alone = sum(r["L"].values()), r["L"].get("1", 0)
    if not r["verified"] or alone < slot_windows / 2:
        return
    reason, times = max(r["reasons"].items(), key=lambda item: item[1])
    first = r["positions"][0]
    what = (
        f"{alone / slot_windows:.0%} of the slots' windows had no draft (most often: {reason}, "
        f"{times / slot_windows:.0%}); of the first drafts that were tried {first['cumulative']:.0%} held"
    )
    row = r["row_cost"]
    cost = f"; a row costs {row['row_ms']:.3f} ms of {r['busy_ms'] / r['windows']:.1f}" if row else ""
    yield Cause("few drafts", None, what + cost, "compare with a fixed L: --no-mtp-varlen --spec 1")


def _budget(r: Report) -> Iterator[Cause]:
    cut, reached = r["budget"]["slot_windows"], r["budget"]["next_row_reached"]
    slot_windows = sum(r["L"].values())
    rates = [p["conditional"] for p in r["positions"] if p["conditional"] is not None]
    if not cut or not rates or not r["tokens"]:
        return
    gain = reached * rates[-1] / r["tokens"]  # tokens that one more row in each of them would have brought
    config = r["config"]
    now = f"--rows is {config['rows']}" if config.get("rows") else "--rows is not in the file"
    most = config["batch"] * (config["spec"] + 1) if config.get("batch") and config.get("spec") else None
    what = f"the row budget cut {cut / slot_windows:.0%} of the slots' windows; one row more: {gain:+.0%} tokens"
    yield Cause("row budget", gain, what, f"--rows {most} ({now})" if most else f"more --rows ({now})")


def _host(r: Report) -> Iterator[Cause]:
    phases = r["phases_ms"]
    idle = max(r["seconds"] * 1000 - r["busy_ms"], 0.0)
    host = sum(phases.get(name, 0.0) for name in ("plan", "host", "other"))
    if host / _wall_ms(r) >= WORTH_SAYING:
        per = host / r["windows"]
        hint = "--quiet and nothing else on this processor; fewer, wider windows (--spec) share the cost"
        yield Cause("host time", host / _wall_ms(r), f"{per:.2f} ms of each window is spent outside the model", hint)
    if idle / _wall_ms(r) >= WORTH_SAYING:
        what = f"{idle / 1000:.1f} s passed between windows"
        hint = "look at what happened there: arriving requests, a slow reader of the output, the screen (--no-tui)"
        yield Cause("idle", idle / _wall_ms(r), what, hint)


def _slow_slot(r: Report) -> Iterator[Cause]:
    slow = r["slow_slot"]
    if slow is None:
        return
    slot = next(s for s in r["slots"] if s["slot"] == slow["slot"])
    lost = (slow["others"] - slow["tokens_per_window"]) * (slot["windows"] + slot["sat_out"])
    what = (
        f"slot {slow['slot']} gets {slow['tokens_per_window']:.2f} tokens a window, "
        f"the others {slow['others']:.2f}: {slow['why']}"
    )
    hint = f"--slot {slow['slot']} shows it alone; `spec` in a prompts file sets the drafts of one request"
    yield Cause("one slow slot", lost / (r["tokens"] + lost), what, hint)


def _fuse(r: Report) -> Iterator[Cause]:
    off = r["chain_off"]
    if off is None:
        return
    share = off["windows"] / r["windows"]
    what = f"drafts are off since second {off['t']:.1f} ({share:.0%} of the windows): {off['why']}"
    yield Cause("the fuse", share, what, "free memory for the chain: smaller --ctx or --batch, more --vram-reserve-mib")


def _seats(r: Report) -> Iterator[Cause]:
    batch = r["config"].get("batch")
    if not batch or r["slot"] is not None or r["mean_slots"] is None:
        return
    what = f"{r['mean_slots']:.1f} of {batch} slots held a request on average"
    yield Cause("empty slots", 1 - r["mean_slots"] / batch, what, "more prompts at once, or long ones first")


def _sat_out(r: Report) -> Iterator[Cause]:
    out, all_windows = r["L"].get("0", 0), sum(r["L"].values())
    if out:
        what = f"slots sat out {out / all_windows:.0%} of their windows"
        yield Cause("sitting out", out / all_windows, what, "--rows at least --batch, or a smaller --ctx")


def _padding(r: Report) -> Iterator[Cause]:
    rows = r["rows"] + r["padding_rows"]
    if r["padding_rows"] and rows:
        share = r["padding_rows"] / rows
        verify = r["phases_ms"].get("verify", 0.0) / _wall_ms(r)
        what = f"{share:.0%} of the computed rows are padding up to the next bucket"
        yield Cause("padding", share * verify, what, "--rows at a bucket's size, so that windows fill it")


FINDERS: tuple[Callable[[Report], Iterator[Cause]], ...] = (
    _prefill,
    _acceptance,
    _no_drafts,
    _budget,
    _host,
    _slow_slot,
    _fuse,
    _seats,
    _sat_out,
    _padding,
)
