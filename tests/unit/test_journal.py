"""The results file: whatever bytes a kill leaves, what is whole stays and what is torn goes."""

import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_cli.batch import journal as module
from strata_cli.batch.journal import Journal, Mode, meta_path
from strata_cli.errors import StrataError, UsageError

RESUME = Mode(resume=True)
RETRY = Mode(retry_errors=True)
OVERWRITE = Mode(overwrite=True)
DEPENDS = {"model": "m", "sampling": {"stop": ("a",)}}


def no_space(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk:
    """An open file that takes no byte more."""

    write = flush = no_space

    def __init__(self, file):
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)


def before_the_next_lock(monkeypatch, what):
    """Let another process do something between the opening of a file and its lock."""
    lock = module._lock

    def late(file, path):
        monkeypatch.setattr(module, "_lock", lock)
        what()
        lock(file, path)

    monkeypatch.setattr(module, "_lock", late)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


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


BROKEN = [
    *("", "[]", "{}", '{"schema": 99, "seed": 1}', '{"schema": 1, "seed": "x"}', '{"schema": 1, "seed": 1}'),
    *(f'{{"schema": 1, "seed": 1, "depends_on": {what}}}' for what in ("5", "[]", "null", "[" * 100_000)),
]


@pytest.mark.parametrize("meta", BROKEN, ids=lambda text: text[:50])
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


@pytest.mark.parametrize("fails", ["the draft", "the sidecar"])
def test_old_results_stay_until_the_run_can_begin(tmp_path, monkeypatch, fails):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0")])
    with Journal.open(path, DEPENDS, {"r0"}, OVERWRITE) as journal:
        if fails == "the draft":
            monkeypatch.setattr(os, "fsync", no_space)
        else:
            meta_path(path).unlink()
            meta_path(path).mkdir()
        with pytest.raises(StrataError, match=r"out\.jsonl\.meta\.json cannot be written.*another --output"):
            journal.begin()
        monkeypatch.undo()
    assert path.read_bytes() == line("r0")
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.meta.json"]


@pytest.mark.parametrize("death", ["fsync", "unlink", "truncated", "replace"])
def test_a_new_sidecar_never_lies_beside_old_results(tmp_path, monkeypatch, death):
    class Killed(BaseException):
        pass

    def die(*args, **kwargs):
        raise Killed

    path = tmp_path / "out.jsonl"
    write(path, [line("r0")])
    journal = Journal.open(path, DEPENDS, {"r0"}, OVERWRITE)
    with monkeypatch.context() as patch:
        if death == "fsync":
            patch.setattr(os, "fsync", die)
        elif death == "unlink":
            patch.setattr(type(path), "unlink", die)
        elif death == "truncated":
            syncs = iter([os.fsync, die])
            patch.setattr(os, "fsync", lambda fd: next(syncs)(fd))
        else:
            patch.setattr(os, "replace", die)
        with pytest.raises(Killed):
            journal.begin()
    journal.close()
    if path.read_bytes():
        meta = json.loads(meta_path(path).read_text()) if meta_path(path).exists() else {}
        assert meta.get("seed") != journal.seed
    else:
        assert not meta_path(path).exists()


def test_a_sidecar_that_is_a_directory_is_refused_at_once(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_bytes(line("r0"))
    meta_path(path).mkdir()
    for mode in (OVERWRITE, RESUME):
        with pytest.raises(UsageError, match=r"meta\.json is not a file \(move it away"):
            write(path, [], mode)
    assert path.read_bytes() == line("r0")


def test_a_file_that_its_maker_takes_away_is_made_again(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    maker = Journal.open(path, DEPENDS, {"r0"}, Mode())
    before_the_next_lock(monkeypatch, maker.close)
    write(path, [line("r0")], RESUME)
    assert path.read_bytes() == line("r0")


def test_a_file_that_comes_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    refuse = module.refuse_existing

    def comes(*args):
        refuse(*args)
        monkeypatch.setattr(module, "refuse_existing", refuse)
        write(path, [line("r0")])

    monkeypatch.setattr(module, "refuse_existing", comes)
    with pytest.raises(UsageError, match="exists"):
        write(path, [])
    assert path.read_bytes() == line("r0")


@pytest.mark.parametrize("ended", [True, False])
def test_a_file_replaced_before_the_lock_is_not_written_to(tmp_path, monkeypatch, ended):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0", "bad"), line("r1")])
    other = Journal.open(path, DEPENDS, {"r0", "r1", "r2"}, RETRY)

    def retried():
        other.begin()
        other.append(line("r0"))
        if ended:
            other.close()

    before_the_next_lock(monkeypatch, retried)
    if ended:
        assert write(path, [line("r2")], RESUME)[1] == {"r1": False, "r0": False}
        assert path.read_bytes() == line("r1") + line("r0") + line("r2")
    else:
        with pytest.raises(UsageError, match="another process"):
            write(path, [], RESUME)
        other.close()


def test_the_sidecar_is_read_under_the_lock(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0")])
    seeds = []
    before_the_next_lock(monkeypatch, lambda: seeds.append(write(path, [line("r1")], OVERWRITE)[0]))
    assert write(path, [], RESUME) == (seeds[0], {"r1": False})


def test_what_a_refused_resume_made_is_taken_away(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, [])
    path.unlink()
    with pytest.raises(UsageError, match="cannot be resumed"):
        write(path, [], RESUME, {"model": "n"})
    assert names(tmp_path) == ["out.jsonl.meta.json"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real.jsonl", tmp_path / "out.jsonl"
    write(real, [line("r0", "bad"), line("r1")])
    link.symlink_to("far/real.jsonl")
    assert write(link, [line("r0")], RETRY)[1] == {"r1": False}
    assert link.is_symlink()
    assert real.read_bytes() == line("r1") + line("r0")
    seed, _ = write(link, [line("r2")], OVERWRITE)
    assert link.is_symlink()
    assert write(real, [], RESUME) == (seed, {"r2": False})
    assert (names(tmp_path), names(real.parent)) == (["far", "out.jsonl"], ["real.jsonl", "real.jsonl.meta.json"])


def test_a_full_disk_is_said_once(tmp_path):
    path = tmp_path / "out.jsonl"
    with (
        pytest.raises(StrataError, match=r"out\.jsonl cannot be written: No space left.*\(make room, then --resume\)"),
        Journal.open(path, DEPENDS, {"r0"}, Mode()) as journal,
    ):
        journal.begin()
        journal._file = FullDisk(journal._file)
        journal.append(line("r0"))
    assert journal._file.closed


@pytest.mark.parametrize("first", [None, StrataError("the GPU is gone")])
def test_a_disk_that_is_full_at_the_end(tmp_path, monkeypatch, first):
    path = tmp_path / "out.jsonl"
    what = r"out\.jsonl cannot be written: No space left" if first is None else "the GPU is gone"
    with pytest.raises(StrataError, match=what), Journal.open(path, DEPENDS, {"r0"}, Mode()) as journal:
        journal.begin()
        monkeypatch.setattr(os, "fsync", no_space)
        if first:
            raise first
    assert journal._file.closed


def test_a_write_cut_short_goes_on(tmp_path):
    class Slow(FullDisk):
        def write(self, data):
            return self.file.write(data[:3])

    path = tmp_path / "out.jsonl"
    with Journal.open(path, DEPENDS, {"r0"}, Mode()) as journal:
        journal.begin()
        journal._file = Slow(journal._file)
        journal.append(line("r0"))
    assert path.read_bytes() == line("r0")


def test_a_full_disk_while_errors_are_dropped(tmp_path, monkeypatch):
    path = tmp_path / "out.jsonl"
    write(path, [line("r0", "bad")])
    with Journal.open(path, DEPENDS, {"r0"}, RETRY) as journal, monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(StrataError, match=r"out\.jsonl\.new cannot be written: No space left.*--retry-errors"):
            journal.begin()
    assert path.read_bytes() == line("r0", "bad")
    assert names(tmp_path) == ["out.jsonl", "out.jsonl.meta.json"]


def test_a_deeply_nested_line_is_nobodys_record(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, [b'{"a":' + b"[" * 100_000 + b"\n", line("r0")])
    with pytest.raises(UsageError, match=r"out\.jsonl:1: not a record"):
        write(path, [], RESUME)
