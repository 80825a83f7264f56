"""Saves a frame of the live screen as an SVG picture, from the statistics file of a real run.

    strata run examples/prompts.jsonl -o out.jsonl --step-stats steps.jsonl
    python examples/save_screen.py steps.jsonl screen.svg --at 12 --total 24 --max-tokens 256

The file holds every window, so any moment of the run can be drawn again; what it does not hold (how many requests were
queued, how long their answers could become) is given here.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from strata_cli.engine.record import StepRecord
from strata_cli.engine.types import Event, Finished, Result, SpecStats, Started, Timings, WindowDone
from strata_cli.inspect.reader import Reader
from strata_cli.ui.builder import SnapshotBuilder
from strata_cli.ui.picture import save_svg
from strata_cli.ui.snapshot import Header, Limit


def events(lines: list[StepRecord]) -> Iterator[tuple[float, list[Event]]]:
    """The events behind each window: who began, who ended (it is in no later window), the window itself."""
    last = {request: n for n, line in enumerate(lines) for request in line.request}
    seated: set[str] = set()
    tokens: dict[str, int] = {}
    for n, line in enumerate(lines):
        happened: list[Event] = [Started(r, s, 0) for r, s in zip(line.request, line.slot) if r not in seated]
        seated.update(line.request)
        happened.append(WindowDone(line))
        for request, slot, keeps in zip(line.request, line.slot, line.keeps):
            tokens[request] = tokens.get(request, 0) + keeps
            if last[request] == n:
                result = Result(request, [0] * tokens[request], "stop", 0, 0, 0, Timings(), SpecStats())
                happened.append(Finished(request, slot, result))
        yield line.t, happened


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a moment of a run from its statistics file.")
    parser.add_argument("stats", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--at", type=float, help="seconds into the run; default: two thirds of it")
    parser.add_argument("--total", type=int, help="requests that were queued; default: those in the file")
    parser.add_argument("--max-tokens", type=int, help="the limit of an answer")
    parser.add_argument("--width", type=int, default=120)
    args = parser.parse_args()
    with args.stats.open("rb") as stream:
        reader = Reader(stream)
        lines = [line for chunk in reader for line in chunk]
    if not lines or not reader.headers:
        parser.error(f"{args.stats} holds no run with a header")
    head = reader.headers[0]
    requests = {request for line in lines for request in line.request}
    prompts = {r: sum(p for line in lines for q, p in zip(line.request, line.prompt) if q == r) for r in requests}
    spec, batch = head.config.get("spec", 4), head.config.get("batch", 4)
    settings = tuple(f"{k} {head.config[k]}" for k in ("batch", "spec", "plan", "rows", "accept") if head.config.get(k))
    header = Header(
        str(head.model), str(head.config.get("dtype")), str(head.config.get("device")), batch, spec, settings
    )
    limits = {request: Limit(prompts[request], args.max_tokens) for request in requests}
    builder = SnapshotBuilder(header, args.total or len(requests), limits)
    at = args.at if args.at is not None else lines[-1].t * 2 / 3
    for t, happened in events(lines):
        if t > at:
            break
        builder.events(happened)
    height = 13 + batch
    save_svg(builder.snapshot(), args.svg, width=args.width, height=height)
    print(f"{args.svg}: second {at:.1f} of {lines[-1].t:.1f}")


if __name__ == "__main__":
    main()
