"""A statistics file read back: older fields, torn lines, any cut; and the verdict."""

import io
import json
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from strata_cli.engine.record import StepRecord
from strata_cli.errors import StrataError
from strata_cli.inspect import reader
from strata_cli.inspect.analysis import MAX_BINS, Timeline, analyse, report
from strata_cli.inspect.page import page
from strata_cli.inspect.verdict import causes, speed
from tests.scripted_engine import ScriptedEngine

CONFIG = {"batch": 4, "spec": 4, "rows": None, "prefix_cache": True}


def lines_of(engine: ScriptedEngine, header: bool = True, **config: object) -> list[str]:
    head = {"schema": 1, "model": "demo", "profile": "cpu", "config": {**CONFIG, **config}, "version": "0"}
    return [json.dumps(head)] * header + [json.dumps(asdict(r)) for r in engine.records()]


def read(data: str | bytes, **options: object) -> dict:
    data = data.encode() if isinstance(data, str) else data
    return report(analyse(io.BytesIO(data), "file", **options))


def names(r: dict) -> list[str]:
    return [cause.name for cause in causes(r)]


def test_an_empty_file_has_no_windows_and_says_so() -> None:
    for data in ("", "\n", lines_of(ScriptedEngine(requests=0))[0] + "\n"):
        r = read(data)
        assert r["windows"] == r["tokens"] == 0 and r["tok_per_s"] is None
        assert speed(r).startswith("no windows") and causes(r) == []
        json.dumps(r)
        page([r])


def test_a_torn_last_line_is_left_out_and_noted() -> None:
    whole = "\n".join(lines_of(ScriptedEngine(requests=3))) + "\n"
    torn = read(whole[:-40])
    assert torn["windows"] == read(whole)["windows"] - 1
    assert any("torn" in note for note in torn["notes"])
    assert read(whole[:-1])["windows"] == read(whole)["windows"]  # only the line end is missing
    assert read(whole[:-1])["notes"] == []


def test_bad_lines_in_the_middle_are_left_out_with_their_numbers() -> None:
    lines = lines_of(ScriptedEngine(requests=3))
    lines.insert(4, '{"kind": "chain"')
    lines.insert(6, '{"custom_id": "a record of another file"}')
    r = read("\n".join(lines) + "\n")
    assert r["windows"] == len(lines) - 3
    assert r["notes"] == ["2 lines are not statistics and were left out (line 5, 7)"]


def test_a_window_that_contradicts_itself_is_refused() -> None:
    lines = [json.loads(line) for line in lines_of(ScriptedEngine(requests=3))]
    lines[9]["accepted_by"][1] = 7
    with pytest.raises(StrataError, match=r"file: 1 of its windows contradict themselves: slot 1 accepts 7 of \d"):
        read("\n".join(map(json.dumps, lines)))


def test_unknown_fields_and_kinds_are_read() -> None:
    plain = lines_of(ScriptedEngine(requests=3))
    strange = [json.dumps({**json.loads(line), "later": {"x": [1]}}) for line in plain]
    assert read("\n".join(plain)) == read("\n".join(strange))
    r = read('{"kind": "dream", "step_ms": 2.0, "reason": ["mood"], "slot": [1], "L": [1], "keeps": [1], "ctx": [9]}')
    assert r["kinds"]["dream"]["windows"] == 1


def test_the_fields_of_the_older_engine_are_enough() -> None:
    records = list(ScriptedEngine(requests=6, acceptance=(0.8,)).records())
    fields = ("kind", "slots", "rows", "drafts", "accepted", "step_ms", "keeps", "ctx")
    older = [{name: getattr(r, name) for name in fields} for r in records]
    r = read("\n".join(map(json.dumps, older)))
    assert r["windows"] == len(records)
    assert r["tokens"] == sum(sum(x.keeps) for x in records)
    assert r["acceptance_rate"] == sum(x.accepted for x in records) / sum(x.drafts for x in records)
    assert r["seconds"] == pytest.approx(sum(x.step_ms for x in records) / 1000)
    assert any("name no slots" in note for note in r["notes"])
    counted = [{**line, "keeps": sum(line["keeps"]), "ctx": max(line["ctx"])} for line in older]  # numbers, no arrays
    assert read("\n".join(map(json.dumps, counted)))["tokens"] == r["tokens"]


@pytest.mark.parametrize("field", ["keeps", "ctx", "slots"])
@pytest.mark.parametrize("value", [None, "many", 1.5, ["a"], True])
def test_a_number_in_place_of_an_array_is_a_number(field: str, value: object) -> None:
    r = read(json.dumps({"step_ms": 1.0, "keeps": 3, "ctx": 8, "slots": 1, field: value}) + "\n")
    good = field == "slots" and value == ["a"]  # the older engine listed them; how many is all that is counted
    assert r["windows"] == good and bool(r["notes"]) and ("not statistics" in r["notes"][0]) != good


def test_what_schema_2_adds_is_shown() -> None:
    lines = [json.loads(line) for line in lines_of(ScriptedEngine(requests=3))]
    lines[0] |= {"schema": 2, "memory": {"weights": 7}}
    for n, line in enumerate(lines[1:]):
        line["experts"] = n % 3 + 10
    r = read("\n".join(map(json.dumps, lines)))
    assert r["memory"] == {"weights": 7}
    assert r["mean_experts"] == pytest.approx(sum(line["experts"] for line in lines[1:]) / len(lines[1:]))
    old = read("\n".join(lines_of(ScriptedEngine(requests=3))))
    assert old["memory"] is None and old["mean_experts"] is None


def test_without_the_arrays_of_acceptance_it_is_worked_out() -> None:
    records = [asdict(r) for r in ScriptedEngine(requests=6).records()]
    for line in records:
        del line["drafted_by"], line["accepted_by"]
    r = read("\n".join(map(json.dumps, records)))
    exact = read("\n".join(lines_of(ScriptedEngine(requests=6), header=False)))
    assert r["acceptance_rate"] == exact["acceptance_rate"]
    for ours, theirs in zip(r["positions"], exact["positions"]):  # they differ by the last windows of six requests
        assert 0 <= ours["verified"] - theirs["verified"] <= 6
    assert any("worked out" in note for note in r["notes"])


def test_runs_in_one_file_follow_each_other_in_time() -> None:
    lines = lines_of(ScriptedEngine(requests=3))
    once, twice = read("\n".join(lines)), read("\n".join(lines + lines))
    assert twice["runs"] == 2 and twice["tokens"] == 2 * once["tokens"]
    last = json.loads(lines[-1])["t"]
    assert twice["seconds"] == pytest.approx(once["seconds"] + last)
    assert twice["tok_per_s"] == pytest.approx(2 * once["tokens"] / twice["seconds"])


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    data = "\n".join(lines_of(ScriptedEngine(requests=4)))
    whole = read(data)
    for size in (7, 100, 999):
        monkeypatch.setattr(reader, "CHUNK_BYTES", size)
        assert read(data) == whole


@given(st.binary(max_size=300), st.integers(0, 3000))
def test_no_bytes_make_it_fail(junk: bytes, cut: int) -> None:
    good = "\n".join(lines_of(ScriptedEngine(requests=1))).encode()
    r = read(good[:cut] + junk + good[cut:])
    assert r["windows"] >= 0
    json.dumps(r)


def test_a_timeline_stays_small_and_loses_nothing() -> None:
    rng = random.Random(0)
    timeline, t = Timeline(), 0.0
    windows = []
    for _ in range(3000):
        t += rng.uniform(0.0, 3.0)
        windows.append(StepRecord(step_ms=1.0, t=t, keeps=[2, 1], verified=4, accepted=3))
    timeline.add(windows)
    assert len(timeline.bins) <= MAX_BINS and max(timeline.bins) < MAX_BINS
    assert timeline.width_s == 0.25 * 2**7  # 4500 seconds or so in 240 stretches of 32
    assert [sum(column) for column in zip(*timeline.bins.values())] == [3000, 9000, 12000, 9000, 3000.0]


def test_the_time_line_is_cut_at_the_run() -> None:
    r = read("\n".join(lines_of(ScriptedEngine(requests=5))))
    points = r["timeline"]["points"]
    assert sum(p["seconds"] for p in points) == pytest.approx(r["seconds"])
    assert sum(p["tokens"] for p in points) == r["tokens"]


def verdict_of(engine: ScriptedEngine, **config: object) -> dict:
    return read("\n".join(lines_of(engine, **config)))


def test_the_verdict_finds_a_tight_row_budget() -> None:
    tight = verdict_of(ScriptedEngine(requests=20, rows=8, acceptance=(0.95,), prompt_tokens=(1, 8)), rows=8)
    wide = verdict_of(ScriptedEngine(requests=20, acceptance=(0.95,), prompt_tokens=(1, 8)))
    cause = next(c for c in causes(tight) if c.name == "row budget")
    assert "--rows 20" in cause.try_this and "--rows is 8" in cause.try_this
    assert "row budget" not in names(wide)


def test_the_verdict_finds_low_acceptance_and_the_position_it_begins_at() -> None:
    r = verdict_of(ScriptedEngine(requests=20, acceptance=(0.51,), prompt_tokens=(1, 8)))
    cause = next(c for c in causes(r) if c.name == "low acceptance")
    assert "drafts were rejected" in cause.what
    assert "low acceptance" not in names(verdict_of(ScriptedEngine(requests=20, acceptance=(0.99,))))


def test_the_verdict_finds_prefill() -> None:
    r = verdict_of(ScriptedEngine(requests=20, prompt_tokens=(900, 1000), max_tokens=(5, 10)))
    assert names(r)[0] == "prefill"


def test_the_verdict_finds_host_time() -> None:
    r = verdict_of(ScriptedEngine(requests=20, host_ms=30.0, prompt_tokens=(1, 8)))
    cause = causes(r)[0]
    assert cause.name == "host time" and cause.what.startswith("30.06 ms of each window")


def test_the_verdict_finds_one_slow_slot() -> None:
    r = verdict_of(ScriptedEngine(requests=30, acceptance=(0.9, 0.9, 0.1, 0.9), prompt_tokens=(1, 8)))
    cause = next(c for c in causes(r) if c.name == "one slow slot")
    assert cause.what.startswith("slot 2 gets")
    assert r["slow_slot"]["slot"] == 2


def test_the_verdict_finds_the_fuse() -> None:
    r = verdict_of(ScriptedEngine(requests=10, chain_off="out of memory, 12 MiB short"))
    cause = next(c for c in causes(r) if c.name == "the fuse")
    assert cause.share == 1.0 and "out of memory, 12 MiB short" in cause.what
    assert r["chain_off"]["windows"] == r["windows"]


def test_the_verdict_says_why_there_are_few_drafts() -> None:
    r = verdict_of(ScriptedEngine(requests=20, acceptance=(0.2,), prompt_tokens=(1, 8)))
    cause = next(c for c in causes(r) if c.name == "few drafts")
    alone = r["L"]["1"] / sum(r["L"].values())
    assert cause.share is None and cause.what.startswith(f"{alone:.0%} of the slots' windows had no draft")
    assert "most often: acceptance, 100%" in cause.what


def test_the_verdict_finds_empty_slots() -> None:
    r = verdict_of(ScriptedEngine(requests=1, max_tokens=(100, 101)))
    assert "1.0 of 4 slots" in next(c for c in causes(r) if c.name == "empty slots").what


def test_the_page_needs_nothing_else_and_escapes_what_it_is_given() -> None:
    lines = lines_of(ScriptedEngine(requests=6, downgrades=["<script>alert(1)</script>"]))
    text = page([read("\n".join(lines))])
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "http" not in text and "src=" not in text and "@import" not in text
    assert text.count("<svg") >= 8


def test_memory_does_not_grow_with_the_file() -> None:
    lines = "\n".join(lines_of(ScriptedEngine(requests=40), header=False)).encode() + b"\n"

    class Repeated(io.RawIOBase):
        """The same lines over and over, never in memory at once."""

        def __init__(self, times: int):
            self.times, self.rest = times, b""

        def read(self, size: int = -1) -> bytes:
            if len(self.rest) < size and self.times:
                self.times, self.rest = self.times - 1, self.rest + lines
            out, self.rest = self.rest[:size], self.rest[size:]
            return out

    def peak_of(times: int) -> tuple[int, int]:
        tracemalloc.start()
        found = analyse(Repeated(times), "file")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak, found.reader.windows

    (small, few), (large, many) = peak_of(2), peak_of(20)
    assert many == 10 * few and 20 * len(lines) > 3e6
    assert large < small + 500_000
