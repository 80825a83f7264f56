"""The frame as a function of its snapshot, and the snapshot as a function of the events."""

import dataclasses
import io
import re

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from strata_cli.engine.types import Downgrade, Finished, Started, WindowDone
from strata_cli.ui import gpu
from strata_cli.ui.builder import SnapshotBuilder
from strata_cli.ui.dashboard import render
from strata_cli.ui.gpu import Gauges, GpuMeter
from strata_cli.ui.picture import save_svg
from strata_cli.ui.progress import PlainProgress
from strata_cli.ui.snapshot import NOW_S, RECENT, Header, Limit, Snapshot
from tests.scripted_engine import ScriptedEngine

HEADER = Header("demo", "int4", "cpu", 4, 4, ("batch 4", "spec 4 adaptive", "rows 20"), planned_bytes=3 << 30)


def run(engine: ScriptedEngine, windows: int | None = None, header: Header = HEADER) -> tuple[SnapshotBuilder, list]:
    """A builder that saw the first `windows` windows, and the events."""
    limits = {name: Limit(*limit) for name, limit in engine.limits().items()}
    builder = SnapshotBuilder(header, engine.requests, limits)
    seen: list = []
    for n, events in enumerate(engine.run()):
        if n == windows:
            break
        builder.events(events)
        seen += events
    return builder, seen


def frame(snapshot: Snapshot, width: int = 120, height: int = 30, ascii: bool = False) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    console.print(render(snapshot, width, height, ascii=ascii))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


SLOW = ScriptedEngine(requests=40, acceptance=(0.85, 0.8, 0.2, 0.8), max_tokens=(200, 400))


@pytest.fixture(scope="module")
def busy() -> Snapshot:
    return run(dataclasses.replace(SLOW), 150)[0].snapshot(Gauges(2 << 30, 24 << 30, 212.0, 1875, 63))


def test_the_whole_screen(busy: Snapshot) -> None:
    text = "\n".join(frame(busy))
    s = busy.slots[0]
    for wanted in (
        "strata · demo · int4 · cpu",
        "memory 2.0 of 24.0 GiB, 3.0 planned",
        "spec 4 adaptive",
        f"{s.tokens}/{s.max_tokens}",
        s.request,
        f"{busy.tok_per_s:,.1f} tok/s",
        f"{busy.mean_acceptance_length:.2f} tokens a window and slot",
        "windows/s  chain",
        "prefix cache",
        "verify",
        f"{busy.done}/40 done",
        f"{40 - busy.done - 4} waiting",
        "ETA",
        "q finish and stop",
    ):
        assert wanted in text, wanted


@pytest.mark.parametrize(
    "planned, shown",
    [
        (None, "– planned"),
        (300_000, "0.3 MiB planned"),
        (12 << 20, "12 MiB planned"),
        (2**30 - 1, "1.0 planned"),
        (2**30, "1.0 planned"),
        (22 << 30, "22.0 planned"),
    ],
)
def test_the_plan_has_digits_that_say_something(busy: Snapshot, planned: int | None, shown: str) -> None:
    header = dataclasses.replace(HEADER, planned_bytes=planned)
    for width in (120, 80):
        assert f"24.0 GiB, {shown}" in "\n".join(frame(dataclasses.replace(busy, header=header), width))


def test_the_slow_slot_stands_out_without_colour(busy: Snapshot) -> None:
    rows = [line for line in frame(busy) if re.match(r"[! ] +\d ", line)]
    assert [row[0] for row in rows] == [" ", " ", "!", " "]
    assert "acceptance" in rows[2]
    reason = next(line for line in frame(busy) if "is slow" in line)
    assert reason.startswith("! slot 2 is slow: ") and "of its drafts accepted" in reason
    folded = " ".join(" ".join(frame(busy, 44)).split())
    assert re.search(r"slot 2 is slow: \d+% of its drafts accepted, of the others' \d+%", folded)


def test_nobody_is_slow_where_all_are_alike() -> None:
    builder, _ = run(ScriptedEngine(requests=40, acceptance=(0.8,), max_tokens=(200, 400)), 150)
    assert builder.snapshot().slow is None
    assert "is slow" not in "\n".join(frame(builder.snapshot()))


@settings(max_examples=60, deadline=None)
@given(st.integers(20, 200), st.integers(1, 40), st.booleans(), st.sampled_from([None, 0, 3]), st.integers(0, 200))
def test_a_frame_never_leaves_its_page(width: int, height: int, ascii: bool, detail: int | None, windows: int) -> None:
    builder, _ = run(dataclasses.replace(SLOW), windows)
    builder.events([Downgrade("graphs", "capture failed: " + "out of memory " * 20)])
    lines = frame(builder.snapshot(detail=detail), width, height, ascii)
    assert len(lines) <= height and max(map(len, lines)) <= width
    assert not ascii or "".join(lines).isascii()


def test_what_matters_stays_when_lines_run_short(busy: Snapshot) -> None:
    lines = frame(busy, 120, 9)
    assert [line[:3] for line in lines if re.match(r"[! ] +\d ", line)] == ["  0", "  1", "! 2", "  3"]
    assert any("is slow" in line for line in lines) and any("done" in line for line in lines)
    tiny = frame(busy, 120, 3)
    assert "more lines" in "".join(tiny)  # said, not silently cut


def test_layouts(busy: Snapshot) -> None:
    assert "keeps, last 32" in "\n".join(frame(busy, 120)) and "% by pos" in "\n".join(frame(busy, 120))
    compact = "\n".join(frame(busy, 100))
    assert "keeps" in compact and "% by pos" not in compact and busy.slots[1].request in compact
    narrow = "\n".join(frame(busy, 60))
    assert "keeps" not in narrow and "tok/s" in narrow and f"{busy.slots[1].tokens}/" in narrow


def test_downgrades_stay() -> None:
    builder, _ = run(ScriptedEngine(downgrades=["drafts off: out of memory"]), 3)
    builder.events([Downgrade("graphs", "capture failed")])
    for _ in range(2):
        text = "\n".join(frame(builder.snapshot()))
        assert "! drafts off: out of memory" in text and "! graphs: capture failed" in text


def test_a_slot_in_detail(busy: Snapshot) -> None:
    text = "\n".join(frame(dataclasses.replace(busy, detail=1)))
    s = busy.slots[1]
    assert f"slot 1: {s.request}" in text and f"context {s.ctx}" in text
    assert " ".join(f"{p:.2f}" for p in s.per_position) in text
    assert f"fits {dict(s.reasons)['fits']}" in text


def test_paused_and_stopping_are_said(busy: Snapshot) -> None:
    assert "PAUSED" in "\n".join(frame(dataclasses.replace(busy, paused=True)))
    assert "stopping: 4 running" in "\n".join(frame(dataclasses.replace(busy, stopping=True)))


def test_a_snapshot_adds_up_to_the_events() -> None:
    engine = ScriptedEngine(requests=20, acceptance=(0.9, 0.4, 0.7, 0.6), rows=13, sit_out={1: 0.3})
    builder, events = run(engine, 180)
    s = builder.snapshot()
    records = [e.record for e in events if isinstance(e, WindowDone)]
    finished = [e for e in events if isinstance(e, Finished)]
    now = records[-1].t
    assert s.tokens == sum(sum(r.keeps) for r in records)
    assert s.done == len(finished) and s.failed == 0
    assert s.cached_tokens == sum(e.cached_tokens for e in events if isinstance(e, Started))
    assert s.elapsed_s == pytest.approx(now - records[0].t + records[0].step_ms / 1000)
    recent = [r for r in records if int(r.t) > now - NOW_S]
    assert s.acceptance == sum(r.accepted for r in recent) / sum(r.verified for r in recent)
    rows = [(r, i) for r in recent for i in range(r.slots) if r.L[i]]
    assert s.mean_L == sum(r.L[i] for r, i in rows) / len(rows)
    assert s.mean_acceptance_length == sum(r.keeps[i] for r, i in rows) / len(rows)
    assert sum(share for _, share in s.phases) == pytest.approx(1.0)
    gone = {e.request_id for e in finished}
    for v in s.slots:
        own = [(r, i) for r in records for i in range(r.slots) if r.slot[i] == v.slot and r.request[i] == v.request]
        assert v.request not in gone
        assert v.tokens == sum(r.keeps[i] for r, i in own)
        decoded = [(r, i) for r, i in own if r.L[i] or (not r.prompt[i] and r.reason[i] == "sitout")][-RECENT:]
        assert list(v.keeps) == [r.keeps[i] for r, i in decoded]
        verified = sum(r.drafted_by[i] for r, i in decoded)
        assert v.acceptance == (sum(r.accepted_by[i] for r, i in decoded) / verified if verified else None)


def test_the_queue_ends() -> None:
    s = run(ScriptedEngine(requests=6))[0].snapshot()
    assert (s.done, s.active, s.eta_s) == (6, 0, 0.0)
    assert all(v.state == "free" for v in s.slots)


def test_requests_of_an_earlier_run_are_done_already() -> None:
    builder = SnapshotBuilder(HEADER, 100, done=40)
    for events in ScriptedEngine(requests=5).run():
        builder.events(events)
    assert builder.snapshot().done == 45
    assert "45/100 done" in "\n".join(frame(builder.snapshot()))


def test_a_request_that_lost_its_slot_leaves_the_row_and_comes_back_with_its_tokens() -> None:
    engine = ScriptedEngine(requests=2, slots=2, max_tokens=(100, 110))
    header = dataclasses.replace(HEADER, batch=2)
    builder, events = run(engine, 12, header)
    _, second = builder.snapshot().slots
    record = next(e.record for e in reversed(events) if isinstance(e, WindowDone))
    alone = msgspec.structs.replace(
        record,
        slots=1,
        **{
            name: getattr(record, name)[:1]
            for name in ("slot", "request", "prompt", "L", "keeps", "ctx", "reason", "drafted_by", "accepted_by")
        },
    )
    builder.events([WindowDone(alone)])
    assert builder.snapshot().slots[1].state == "free"
    builder.events([Started(second.request, 1, 0), WindowDone(record)])
    back = builder.snapshot().slots[1]
    assert back.request == second.request and back.tokens == second.tokens + record.keeps[1]


def test_a_window_of_one_group_says_nothing_of_the_other() -> None:
    builder, events = run(ScriptedEngine(requests=4, max_tokens=(100, 110)), 5)
    record = next(e.record for e in reversed(events) if isinstance(e, WindowDone))
    other = msgspec.structs.replace(
        record, group=1, slots=0, slot=[], request=[], prompt=[], L=[], keeps=[], ctx=[], reason=[]
    )
    builder.events([WindowDone(other)])
    assert [v.state for v in builder.snapshot().slots].count("free") == 0


def test_plain_progress_has_a_line_every_ten_seconds() -> None:
    now, out = [0.0], io.StringIO()
    progress = PlainProgress(SnapshotBuilder(HEADER, 12), out, clock=lambda: now[0])
    with progress:
        for events in ScriptedEngine(requests=12).run():
            progress.events(events)
            now[0] += 0.7
            progress.tick()
    *during, last = out.getvalue().splitlines()
    assert [line.split()[0] for line in during] == [
        f"t={10 * n + 0.7 - (10 * n) % 0.7:.0f}s" for n in range(1, len(during) + 1)
    ]
    assert re.fullmatch(r"t=\d+s done=\d+/12 active=4 tok/s=\d+ accept=0\.\d\d L=\d\.\d", during[0])
    assert last.startswith(f"t={now[0]:.0f}s done=12/12 active=0 ")


def test_a_picture_of_the_screen(busy: Snapshot, tmp_path) -> None:
    save_svg(busy, tmp_path / "screen.svg")
    svg = (tmp_path / "screen.svg").read_text()
    assert svg.startswith("<svg") and "slot&#160;2&#160;is&#160;slow" in svg
    assert "url(" not in svg.replace("url(#", "") and "@font-face" not in svg  # nothing is fetched to show it


def test_without_a_driver_the_gauges_are_dashes(busy: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_open", lambda which: (None, None))
    header = dataclasses.replace(HEADER, device="cuda", gpu=0)
    text = "\n".join(frame(dataclasses.replace(busy, header=header, gauges=GpuMeter(0).read())))
    assert "memory – GiB" in text and "– W · – MHz · – °C" in text


def test_the_gauges_are_read_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    class Card:
        NVML_CLOCK_SM = 1
        NVML_TEMPERATURE_GPU = 0
        asked = 0

        def nvmlDeviceGetMemoryInfo(self, handle):
            Card.asked += 1
            return type("Memory", (), {"used": 5 << 30, "total": 24 << 30})

        def nvmlDeviceGetPowerUsage(self, handle):
            return 212_400

        def nvmlDeviceGetClockInfo(self, handle, clock):
            return 1875

        def nvmlDeviceGetTemperature(self, handle, sensor):
            raise RuntimeError("not supported")

    now = [0.0]
    monkeypatch.setattr(gpu, "_open", lambda which: (Card(), object()))
    meter = GpuMeter("GPU-1234", clock=lambda: now[0])
    for _ in range(10):
        assert meter.read() == Gauges(5 << 30, 24 << 30, 212.4, 1875, None)
        now[0] += 0.2
    assert Card.asked == 2
