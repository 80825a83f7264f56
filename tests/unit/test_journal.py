"""The results file: whatever bytes a kill leaves, what is whole stays and what is torn goes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.batch.journal import Journal, Mode, meta_path
from strata_cli.errors import StrataError, UsageError

RESUME = Mode(resume=True)
DEPENDS = {"model": "m", "sampling": {"stop": ("a",)}}


def line(name, error=None, text="text"):
    return json.dumps({"custom_id": name, "text": text, "error": error}).encode() + b"\n"


def write(path, records, mode=None, depends=DEPENDS, ids=None):
    ids = ids or {f"r{i}" for i in range(20)}
    with Journal.open(path, depends, ids, mode or Mode()) as journal:
        journal.begin()
        done = dict(journal.done)
        for record in records:
            journal.append(record)
        return journal.seed, done


@given(data=st.data(), count=st.integers(0, 6), texts=st.lists(st.text(max_size=5), min_size=6, max_size=6))
def test_any_cut_loses_the_torn_line_only(tmp_path_factory, data, count, texts):
    path = tmp_path_factory.mktemp("j") / "out.jsonl"
    lines = [line(f"r{i}", text=texts[i]) for i in range(count)]
    seed, _ = write(path, lines)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    again, done = write(path, lines[kept:], RESUME)
    assert again == seed
    assert done == {f"r{i}": False for i in range(kept)}
    assert path.read_bytes() == whole


@given(st.binary(min_size=1, max_size=30).filter(lambda b: b"\n" not in b))
def test_a_last_line_of_garbage_is_cut(tmp_path_factory, garbage):
    path = tmp_path_factory.mktemp("j") / "out.jsonl"
    write(path, [line("r0")])
    path.write_bytes(line("r0") + garbage + b"\n")
    assert write(path, [line("r1")], RESUME)[1] == {"r0": False}
    assert path.read_bytes() == line("r0") + line("r1")


def test_garbage_in_the_middle_is_nobodys_record(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, [])
    before = line("r0") + b"garbage\n" + line("r1")
    path.write_bytes(before)
    with pytest.raises(UsageError, match=r"out\.jsonl:2: not a record"):
        write(path, [], RESUME)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("records", "what"), [(["r0", "r0"], '"r0" comes twice'), (["zz"], '"zz" is not in the input')]
)
def test_records_of_another_run(tmp_path, records, what):
    path = tmp_path / "out.jsonl"
    write(path, [line(name) for name in records])
    with pytest.raises(UsageError, match=what):
        write(path, [], RESUME)


def test_errors_count_as_done_until_they_are_retried(tmp_path):
    path = tmp_path / "out.jsonl"
    seed, _ = write(path, [line("r0"), line("r1", "bad"), line("r2"), line("r3", {"code": "failed"})])
    assert write(path, [], RESUME)[1] == {"r0": False, "r1": True, "r2": False, "r3": True}
    again, done = write(path, [line("r3"), line("r1")], Mode(retry_errors=True))
    assert again == seed
    assert done == {"r0": False, "r2": False}
    assert path.read_bytes() == line("r0") + line("r2") + line("r3") + line("r1")


def test_nothing_is_given_up_before_begin(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0", "bad")])
    before, meta = path.read_bytes(), meta_path(path).read_bytes()
    for mode in (Mode(overwrite=True), Mode(retry_errors=True), RESUME):
        with Journal.open(path, DEPENDS, {"r0"}, mode):
            pass
        assert (path.read_bytes(), meta_path(path).read_bytes()) == (before, meta)


def test_what_differs_is_named(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0")])
    with pytest.raises(UsageError) as caught:
        write(path, [], RESUME, {"model": "n", "sampling": {"stop": ("a",)}, "ctx": 9})
    assert 'ctx was null, is 9; model was "m", is "n"' in caught.value.what
    assert "sampling" not in caught.value.what


@pytest.mark.parametrize("meta", ["", "[]", "{}", '{"schema": 99, "seed": 1}', '{"schema": 1, "seed": "x"}'])
def test_a_broken_sidecar(tmp_path, meta):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0")])
    meta_path(path).write_text(meta)
    with pytest.raises(UsageError, match=r"meta\.json"):
        write(path, [], RESUME)
    assert path.read_bytes() == line("r0")


def test_resuming_what_is_not_there_starts(tmp_path):
    path = tmp_path / "out.jsonl"
    assert write(path, [line("r0")], RESUME)[1] == {}
    assert json.loads(meta_path(path).read_text())["depends_on"] == {"model": "m", "sampling": {"stop": ["a"]}}


def test_a_sidecar_without_its_file_keeps_its_seed(tmp_path):
    path = tmp_path / "out.jsonl"
    seed, _ = write(path, [line("r0")])
    path.unlink()
    assert write(path, [], RESUME) == (seed, {})


def test_seeds_of_two_runs_differ(tmp_path):
    assert write(tmp_path / "a", [])[0] != write(tmp_path / "b", [])[0]


def test_every_record_is_on_its_way_at_once(tmp_path):
    path = tmp_path / "out.jsonl"
    with Journal.open(path, DEPENDS, {"r0"}, Mode()) as journal:
        journal.begin()
        journal.append(line("r0"))
        assert path.read_bytes() == line("r0")


def test_a_full_disk_is_one_line(tmp_path):
    with Journal.open(tmp_path / "out.jsonl", DEPENDS, {"r0"}, Mode()) as journal:
        journal.begin()
        with open("/dev/full", "wb", buffering=0) as full:
            journal._file, kept = full, journal._file
            with pytest.raises(StrataError, match="No space left"):
                journal.append(line("r0"))
            journal._file = kept


def test_a_lock_is_kept_after_errors_are_dropped(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0", "bad")])
    with Journal.open(path, DEPENDS, {"r0"}, Mode(retry_errors=True)) as journal:
        journal.begin()
        with pytest.raises(UsageError, match="another process"):
            Journal.open(path, DEPENDS, {"r0"}, RESUME)
