"""The step-statistics file and the totals of a run."""

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strata_cli.engine.record import BY_SLOT, PHASES, StatsHeader, StepRecord, describe
from strata_cli.engine.stats import RunSummary, StepStatsWriter
from strata_cli.engine.tally import SlotTally, Tally, slow_slot
from strata_cli.engine.types import Downgrade, SpecStats, WindowDone
from strata_cli.errors import UsageError
from tests.scripted_engine import ScriptedEngine

HEADER = {"model": "demo", "profile": None, "config": {"batch": 4}, "version": "0.1.0"}


def begun(path: Any, header: Mapping[str, Any], **settings: Any) -> StepStatsWriter:
    """A writer whose header line is written."""
    writer = StepStatsWriter(path, **settings)
    writer.begin(header)
    return writer


# As design section 8 writes them.
KEYS = (
    "kind t group slots rows drafts verified accepted step_ms slot request prompt L keeps ctx reason ms bucket experts "
    "prefix_hit_tokens chain_off downgrades"
).split()


def test_the_file_has_a_header_and_a_line_a_window(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    writer = begun(path, HEADER)
    records = list(ScriptedEngine(requests=5).records())
    for record in records:
        writer.write(record)
    writer.close()
    header, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert list(header) == ["schema", "model", "profile", "config", "version", "memory"]
    assert header == {"schema": 2, **HEADER, "memory": None}
    assert len(lines) == len(records)
    for line, record in zip(lines, records):
        assert list(line)[: len(KEYS)] == KEYS
        assert list(line["ms"]) == ["plan", "draft", "verify", "sample", "commit", "host"]
        assert line["keeps"] == record.keeps and line["request"] == record.request
        assert line["step_ms"] == pytest.approx(record.step_ms, abs=1e-4)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    memory = {"weights": {"int4": 1234}, "reserve": 5}
    writer = begun(path, {**HEADER, "config": {"mtp": Path("head")}, "memory": memory})
    full = StepRecord(
        **{"kind": "mixed", "t": 1.5, "group": 1, "slots": 2, "rows": 9, "drafts": 4, "verified": 3, "accepted": 2},
        **{"step_ms": 2.25, "slot": [0, 3], "request": ["a", "b"], "prompt": [4, 0], "L": [0, 5], "keeps": [1, 3]},
        **{"ctx": [5, 17], "reason": ["prefill", "fits"], "ms": {"draft": 0.5, "host": 0.0625}, "bucket": 16},
        **{"experts": 40, "prefix_hit_tokens": 2, "chain_off": "no memory", "downgrades": ["graphs: off"]},
        **{"drafted_by": [0, 3], "accepted_by": [0, 2], "prefix_hits": 1, "prefix_misses": 1},
    )
    assert set(msgspec.structs.asdict(full)) == set(StepRecord.__struct_fields__)
    writer.write(full)
    writer.close()
    header, line = path.read_bytes().splitlines()
    assert list(json.loads(line)) == list(StepRecord.__struct_fields__) == list(describe(StepRecord))
    assert msgspec.json.decode(line, type=StepRecord) == full
    expected = StatsHeader(schema=2, **{**HEADER, "config": {"mtp": "head"}}, memory=memory)
    assert msgspec.json.decode(header, type=StatsHeader) == expected


def test_the_record_names_its_arrays_and_phases() -> None:
    record = next(ScriptedEngine(requests=5).records())
    arrays = {name for name in record.__struct_fields__ if isinstance(getattr(record, name), list)}
    assert set(BY_SLOT) == arrays - {"downgrades"}
    assert {len(getattr(record, name)) for name in BY_SLOT} == {record.slots}
    assert list(PHASES) == list(record.ms)
    for struct in (StatsHeader, StepRecord):
        assert all(describe(struct).values()) and list(describe(struct)) == list(struct.__struct_fields__)


def test_every_line_is_there_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    writer = begun(path, HEADER)
    for n, record in enumerate(ScriptedEngine(requests=2).records(), 1):
        writer.write(record)
        assert len(path.read_text().splitlines()) == n + 1
    writer.close()


def test_a_resumed_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    begun(path, HEADER).close()
    begun(path, HEADER, append=True).close()
    assert [json.loads(line)["schema"] for line in path.read_text().splitlines()] == [2, 2]
    begun(path, HEADER).close()
    assert len(path.read_text().splitlines()) == 1


def test_a_full_disk_turns_it_off_with_one_warning() -> None:
    warnings: list[str] = []
    writer = begun("/dev/full", HEADER, warn=warnings.append)
    for record in ScriptedEngine(requests=2).records():
        writer.write(record)
    writer.close()
    assert warnings == [writer.warning]
    assert "/dev/full" in warnings[0] and "No space left" in warnings[0]


def test_a_reader_that_leaves_turns_it_off(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    warnings: list[str] = []
    writer = begun(pipe, HEADER, warn=warnings.append)
    assert os.read(reader, 9) == b'{"schema"'
    os.close(reader)
    for record in ScriptedEngine(requests=2).records():
        writer.write(record)
    writer.close()
    assert len(warnings) == 1 and "Broken pipe" in warnings[0]


def test_a_reader_that_lags_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = begun(pipe, HEADER)
    records = list(ScriptedEngine(requests=100).records())
    for record in records:  # far more than a pipe holds; a blocking write would hang here
        writer.write(record)
    assert writer.warning is None
    monkeypatch.setattr(StepStatsWriter, "MAX_PENDING", 1000)
    writer.write(records[0])
    assert writer.warning is not None and "behind" in writer.warning
    os.close(reader)


def test_a_path_that_cannot_be_written_is_refused_before_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written to .*nowhere"):
        begun(tmp_path / "nowhere" / "steps.jsonl", HEADER)


def test_totals_are_what_the_events_add_up_to() -> None:
    engine = ScriptedEngine(requests=9, acceptance=(0.9, 0.3, 0.7, 0.6), rows=14)
    summary, events = RunSummary(), [Downgrade("graphs", "no memory")]
    for step in engine.run():
        events += step
    summary.events(events[: len(events) // 2])
    summary.events(events[len(events) // 2 :])
    totals = summary.totals(wall_s=4.0)
    records = [e.record for e in events if isinstance(e, WindowDone)]
    tokens = sum(sum(r.keeps) for r in records)
    decoding = [(r, i) for r in records for i in range(r.slots) if r.L[i]]
    assert totals.requests == 9 and totals.failed == 0
    assert totals.tokens == tokens and totals.tok_per_s == tokens / 4
    assert totals.acceptance_rate == sum(r.accepted for r in records) / sum(r.verified for r in records)
    assert totals.mean_acceptance_length == sum(r.keeps[i] for r, i in decoding) / len(decoding)
    for j, (cumulative, conditional) in enumerate(zip(totals.per_position, totals.conditional)):
        had_row = [(r, i) for r, i in decoding if r.drafted_by[i] > j]
        reached = [(r, i) for r, i in had_row if r.accepted_by[i] >= j]
        accepted = [(r, i) for r, i in had_row if r.accepted_by[i] > j]
        assert cumulative == len(accepted) / len(had_row) and conditional == len(accepted) / len(reached)
    assert sum(totals.windows.values()) == len(records)
    assert sum(totals.phase_ms.values()) == pytest.approx(sum(r.step_ms for r in records))
    assert totals.downgrades == ["graphs: no memory"]


def test_counts_by_slot_are_the_engines_own_counts_by_request() -> None:
    """One request a slot: the tally of the slot is the SpecStats that the engine kept for the request."""
    engine = ScriptedEngine(requests=4)
    specs = {}
    tally = Tally()
    for events in engine.run():
        tally.add(e.record for e in events if isinstance(e, WindowDone))
        specs.update({e.slot: e.result.spec for e in events if hasattr(e, "result")})
    for slot, counts in tally.slots().items():
        drafted_counts_differ = {"drafted"}  # drafts without a verdict are not in the arrays by slot
        for name in SpecStats.__slots__:
            if name not in drafted_counts_differ:
                assert getattr(counts.spec, name) == getattr(specs[slot], name), name


def _slot(rng: random.Random, windows: int, chance: float, sat_out: int = 0, L: int = 4) -> SlotTally:
    counts = SlotTally()
    for _ in range(windows):
        accepted = next((j for j in range(L - 1) if rng.random() > chance), L - 1)
        counts.add(L, accepted + 1, L - 1, accepted, "fits", False)
    for _ in range(sat_out):
        counts.add(0, 0, 0, 0, "sitout", False)
    return counts


def test_the_slow_slot_and_why() -> None:
    rng = random.Random(1)
    good = {slot: _slot(rng, 40, 0.8) for slot in range(3)}
    assert slow_slot(good) is None
    unlucky = slow_slot({**good, 3: _slot(rng, 40, 0.1)})
    assert unlucky is not None and unlucky.slot == 3 and "of its drafts accepted" in unlucky.why
    idle = slow_slot({**good, 3: _slot(rng, 20, 0.8, sat_out=20)})
    assert idle is not None and idle.slot == 3 and idle.why == "it sat out 20 of 40 windows"
    plain = SlotTally()
    for _ in range(30):
        plain.add(1, 1, 0, 0, "nodraft", False)
    alone = slow_slot({**good, 3: plain})
    assert alone is not None and "L is 1.0" in alone.why and "nodraft" in alone.why
    assert slow_slot({0: _slot(rng, 40, 0.1)}) is None  # nothing to compare with
    assert slow_slot({**good, 3: _slot(rng, 3, 0.0)}) is None  # too few windows to say


def test_waiting_to_read_a_prompt_is_not_sitting_out() -> None:
    counts = SlotTally()
    counts.add(0, 1, 0, 0, "prefill", True)
    counts.add(0, 0, 0, 0, "prefill", False)
    counts.add(0, 0, 0, 0, "sitout", False)
    assert (counts.prompt_windows, counts.sat_out, counts.tokens) == (2, 1, 1)
    assert counts.reasons == {"sitout": 1}


def test_step_time_quantiles_are_within_half_a_bin() -> None:
    records = list(ScriptedEngine(requests=60).records())
    tally = Tally()
    tally.add(records)
    times = sorted(r.step_ms for r in records if r.kind == "chain")
    group = tally.by_kind()["chain"]
    for q in (0.0, 0.5, 0.9, 0.99):
        assert group.quantile(q) == pytest.approx(times[int(q * (len(times) - 1))], rel=0.0051)
