"""One run of an arm: here, on an engine of this process, or in another installation's process."""

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_cli.bench.arms import Arm
from strata_cli.bench.cases import Case
from strata_cli.bench.figures import RunFigures, digest
from strata_cli.config import SamplingParams
from strata_cli.engine.tally import merge_spec
from strata_cli.engine.types import Event, Finished, Result, SpecStats
from strata_cli.errors import StrataError
from strata_cli.session import Checkpoint, Later, Orders, drive

if TYPE_CHECKING:
    from strata_cli.engine.engine import Engine


class Results:
    """The observer that keeps what became of each request, by id."""

    def __init__(self) -> None:
        self.by_id: dict[str, Result] = {}

    def events(self, events: Sequence[Event]) -> None:
        self.by_id |= {e.request_id: e.result for e in events if isinstance(e, Finished)}

    def require(self) -> dict[str, Result]:
        """The results. Raises StrataError: a request failed."""
        if failed := next((r for r in self.by_id.values() if r.finish_reason == "error"), None):
            raise StrataError(f"request {failed.request_id} failed: {failed.error}")
        return self.by_id


def run_here(
    engine: "Engine", checkpoint: Checkpoint, cases: Sequence[Case], arrivals: Sequence[float] | None, static: bool
) -> dict[str, tuple[float, Result]]:
    """Run all cases on a long-lived engine whose prefix cache is emptied first. Returns id -> (arrival s, result).

    arrivals: seconds after the start at which each case comes, rising; None: all at once. static: nobody joins until
    all running requests are done.
    """
    while engine.prefix is not None and engine.prefix.evict():
        pass
    times = arrivals if arrivals is not None else [0.0] * len(cases)
    later = [Later(case.request(checkpoint), at_s) for case, at_s in zip(cases, times)]
    results = Results()
    came = drive(engine, [results], later=later, orders=lambda: Orders(pause=static and any(engine.seats)))
    found = results.require()
    return {case.id: (came[case.id], found[case.id]) for case in cases}


def figures(found: Mapping[str, tuple[float, Result]], downgrades: Sequence[str]) -> RunFigures:
    """The figures of a run. All times are those at which tokens left the engine."""
    results = [r for _, r in found.values()]
    spec = SpecStats()
    for result in results:
        merge_spec(spec, result.spec)
    return RunFigures(
        wall_s=max(came + (r.timings.ttft_ms + r.timings.decode_ms) / 1000 for came, r in found.values()),
        tokens=sum(len(r.token_ids) for r in results),
        ttft_ms=[r.timings.ttft_ms for r in results],
        decode_tok_s=[r.timings.decode_tok_s for r in results if r.timings.decode_tok_s is not None],
        spec=spec,
        texts={id: digest(r.token_ids) for id, (_, r) in found.items()},
        downgrades=list(downgrades),
    )


ALWAYS_WRITTEN = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "ignore_eos")


def run_elsewhere(arm: Arm, model: str, cases: Sequence[Case]) -> RunFigures:
    """`strata run --simple --with-tokens --step-stats` of another installation, in a process of its own.

    Loading is not timed: the records' own timings count, or the windows' where an older engine has none.
    Raises StrataError: it ended badly, or lost a request.
    """
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as folder:
        prompts, out, steps = (Path(folder) / name for name in ("prompts.jsonl", "out.jsonl", "steps.jsonl"))
        prompts.write_text("".join(json.dumps(_line(case)) + "\n" for case in cases), encoding="utf-8")
        command, flags = arm.command[0], list(arm.command[1:])
        which = [] if {"-m", "--model"} & set(flags) else ["--model", model]
        wanted = ["--simple", "--with-tokens", "--step-stats", str(steps), "-o", str(out)]
        ran = subprocess.run([command, "run", str(prompts), *which, *flags, *wanted], capture_output=True)
        if ran.returncode:
            said = ran.stderr.decode(errors="replace").strip().splitlines()
            what = next((line for line in said if line.startswith("error")), said[-1] if said else "nothing said")
            raise StrataError(f"arm {arm.name!r}: {command} ended with exit code {ran.returncode}: {what}")
        records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        windows = [json.loads(line) for line in steps.read_text(encoding="utf-8").splitlines()]
    if len(records) != len(cases):
        raise StrataError(f"arm {arm.name!r}: {len(records)} records for {len(cases)} requests")
    return from_records(records, [w for w in windows if "step_ms" in w])


def from_records(records: Sequence[Mapping[str, Any]], windows: Sequence[Mapping[str, Any]]) -> RunFigures:
    """Figures from simple records and the lines of a statistics file."""
    timings = [r.get("timings") or {} for r in records]
    ends = [t["ttft_ms"] + t["decode_ms"] for t in timings if "ttft_ms" in t and "decode_ms" in t]
    all_timed = len(ends) == len(records)
    wall_ms = max(ends) if all_timed else sum(w["step_ms"] for w in windows)
    spec = SpecStats()
    for window in windows:
        for L, keeps, judged, held in zip(*(window.get(n, ()) for n in ("L", "keeps", "drafted_by", "accepted_by"))):
            if L:
                spec.record(judged, judged, held, keeps)
    return RunFigures(
        wall_s=wall_ms / 1000,
        tokens=sum(len(r["token_ids"]) for r in records),
        ttft_ms=[t["ttft_ms"] for t in timings if "ttft_ms" in t],
        decode_tok_s=[t["decode_tok_s"] for t in timings if t.get("decode_tok_s") is not None],
        spec=spec,
        texts={r["custom_id"]: digest(r["token_ids"]) for r in records},
    )


def _line(case: Case) -> dict[str, Any]:
    """A case as a line that says everything itself: the other installation may have other defaults."""
    unset = asdict(SamplingParams())
    given = {n: v for n, v in asdict(case.params).items() if n in ALWAYS_WRITTEN or v != unset[n]}
    if "logit_bias" in given:
        given["logit_bias"] = {str(token): bias for token, bias in given["logit_bias"]}
    return {"custom_id": case.id, "prompt": case.prompt.ids, **given}
