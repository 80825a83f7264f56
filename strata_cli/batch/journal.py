"""The results file of a run that may be killed at any moment and taken up again. No torch.

Records are only ever appended, each in one write. Beside `out.jsonl` lies `out.jsonl.meta.json`, written before the
first record: what the records depend on (model, settings, sampling, input) and the seed that all others derive from.
So a resumed run gives the records of an uninterrupted one, or refuses and says what differs.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from strata_cli.engine.seeds import fresh_seed
from strata_cli.errors import StrataError, UsageError

SCHEMA = 1
OPENINGS = 10  # of a file that others take away or replace meanwhile


def meta_path(output: Path) -> Path:
    """The sidecar of a results file, beside the file itself where `output` is a link: one for all its names.

    Raises UsageError where `output` is no name of a file.
    """
    if not output.name:
        raise UsageError(f"--output: {output} is not the name of a file", "without --output the records go to stdout")
    return _beside(output, ".meta.json")


def draft_path(path: Path) -> Path:
    """What replaces a results file or its sidecar is first written here."""
    return _beside(path, ".new")


@dataclass(frozen=True, slots=True)
class Mode:
    """What to do with a results file that exists. `retry_errors` resumes and runs failed requests again."""

    resume: bool = False
    retry_errors: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.overwrite and (self.resume or self.retry_errors):
            flag = "--resume" if self.resume else "--retry-errors"
            raise UsageError(f"--overwrite and {flag} contradict each other", f"drop --overwrite or {flag}")

    @property
    def resumes(self) -> bool:
        return self.resume or self.retry_errors

    @property
    def takes_existing(self) -> bool:
        return self.resumes or self.overwrite


@dataclass(slots=True)
class Journal:
    """The results file of a run. `done` maps the id of each record that stays in it to whether it failed.

    `open` checks and locks it, so that a run fails before its weights are loaded; nothing that is in the file is given
    up before `begin`.
    """

    path: Path
    seed: int
    done: dict[str, bool]
    _file: IO[bytes] = field(repr=False)
    _fresh: dict[str, Any] | None = field(repr=False)  # the sidecar of a file that starts anew
    _drop_errors: bool = field(repr=False)
    _created: bool = field(repr=False)  # by this run, which has not begun

    @classmethod
    def open(cls, path: Path, depends_on: Mapping[str, Any], ids: Set[str], mode: Mode) -> Self:
        """Open `path`; a resumed one loses its torn last line.

        Args:
            path: the results file.
            depends_on: what the records depend on, as JSON values; compared with the sidecar's when resuming.
            ids: ids of the input.
            mode: what the user asked for.

        Raises UsageError: the file exists and `mode` says nothing; its sidecar is missing or differs; it holds what no
        run of this input wrote; another process writes to it; it cannot be written.
        """
        file, created = _open_locked(path, mode)
        journal = cls(_real(path), 0, {}, file, None, False, created)
        try:
            journal._take_up(json.loads(json.dumps(depends_on)), ids, mode)
        except BaseException:
            with suppress(StrataError):
                journal.close()
            raise
        return journal

    def _take_up(self, depends_on: dict[str, Any], ids: Set[str], mode: Mode) -> None:
        """Read what is there: under the lock, so that file and sidecar belong together."""
        meta = _read_meta(self.path) if mode.resumes else None
        if meta is None:
            if mode.resumes and os.fstat(self._file.fileno()).st_size:
                sidecar = meta_path(self.path)
                raise UsageError(f"{self.path} cannot be resumed: {sidecar} is missing", "--overwrite starts anew")
            self.seed = fresh_seed()
            self._fresh = {"schema": SCHEMA, "seed": self.seed, "depends_on": depends_on}
            return
        _refuse_difference(self.path, meta["depends_on"], depends_on)
        self.seed = meta["seed"]
        self.done = _recover(self._file, self.path, ids)
        self._drop_errors = mode.retry_errors and any(self.done.values())
        if self._drop_errors:
            self.done = {name: failed for name, failed in self.done.items() if not failed}

    def begin(self) -> None:
        """The run starts: a fresh file is emptied and gets its sidecar, a retried one loses its error records.

        Raises StrataError when the disk does not take it; the old records are still there then.
        """
        if self._fresh is not None:
            _start_anew(self._file, self.path, self._fresh)
        elif self._drop_errors:
            self._file = _without_errors(self._file, self.path)
        self._created = False
        self._file.seek(0, os.SEEK_END)

    def append(self, record: bytes) -> None:
        """Write one record, newline included, and hand it to the system.

        Raises StrataError when the disk does not take it; a torn line is left for `--resume` to cut.
        """
        with _writing(self.path):
            _write(self._file, record)

    def close(self) -> None:
        """Close the file, its records on the disk. One that this run made and never began is taken away again.

        Raises StrataError when the disk does not take it.
        """
        if self._file.closed:
            return
        with _writing(self.path):
            try:
                if self._created and _is_at(self._file, self.path):
                    self.path.unlink()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StrataError:
            if error is None:  # else what happened first is what the user has to know
                raise


def refuse_existing(path: Path, mode: Mode) -> None:
    """Raise UsageError where the output exists and `mode` does not say what to do with it, or cannot be a file."""
    sidecar = meta_path(path)
    try:
        os.lstat(draft_path(sidecar))  # the longest of its names
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as fault:
        raise UsageError(f"{sidecar} cannot be written: {fault.strerror}", "another --output") from None
    if path.is_symlink() and not path.exists():
        raise UsageError(f"{path} is a link to nothing", "remove the link, or another --output")
    if sidecar.exists() and not sidecar.is_file():
        raise UsageError(f"{sidecar} is not a file", "move it away, or another --output")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", "without --output the records go to stdout")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: no directory {path.parent}", "make it, or another --output")
    if path.exists() and not mode.takes_existing:
        raise UsageError(f"{path} exists", "--resume goes on with it, --overwrite starts anew")


def is_failed(record: Mapping[str, Any]) -> bool:
    """Is this record, of either shape, an error?"""
    return record.get("error") is not None


def _real(path: Path) -> Path:
    """The file that a link leads to; any other path as the user wrote it."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def _beside(path: Path, suffix: str) -> Path:
    path = _real(path)
    return path.with_name(path.name + suffix)


@contextmanager
def _writing(path: Path, hint: str = "make room, then --resume") -> Iterator[None]:
    """Make a StrataError of what the system says."""
    try:
        yield
    except OSError as fault:
        raise StrataError(f"{path} cannot be written: {fault.strerror or fault}", hint) from None


def _write(file: IO[bytes], data: bytes) -> None:
    """All of it: the files here have no buffer, which could fail a second time when it is closed."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _read_meta(path: Path) -> dict[str, Any] | None:
    sidecar = meta_path(path)
    if not sidecar.is_file():
        return None
    try:
        meta = json.loads(sidecar.read_text(encoding="utf-8"))
    except OSError as fault:
        raise UsageError(f"{sidecar} cannot be read: {fault.strerror}", "another --output") from None
    except ValueError as fault:
        raise UsageError(f"{sidecar} is not valid JSON: {fault}", "--overwrite starts anew") from None
    except RecursionError:
        meta = None  # nested deeper than anything a run writes
    ours = isinstance(meta, dict) and meta.get("schema") == SCHEMA
    if not ours or not isinstance(meta.get("seed"), int) or not isinstance(meta.get("depends_on"), dict):
        raise UsageError(f"{sidecar} is not of this version of strata", "--overwrite starts anew")
    return meta


def _start_anew(file: IO[bytes], path: Path, meta: Mapping[str, Any]) -> None:
    """Empty the file and give it a sidecar. Whatever can fail does so while the old records are still there.

    Old records never lie beside the new sidecar: killed halfway, they lie beside their own, or beside none.
    """
    sidecar = meta_path(path)
    draft = draft_path(sidecar)
    text = json.dumps(meta, indent=1, ensure_ascii=False) + "\n"
    try:
        with _writing(sidecar, "make room there, or another --output"):
            with open(draft, "wb", buffering=0) as file_of_draft:
                _write(file_of_draft, text.encode())
                os.fsync(file_of_draft.fileno())
            sidecar.unlink(missing_ok=True)
            file.truncate(0)
            os.fsync(file.fileno())  # before the new sidecar, also for a power cut
            _write_meta(path, draft)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def _write_meta(path: Path, draft: Path) -> None:
    """The draft becomes the sidecar, whole or not at all."""
    os.replace(draft, meta_path(path))


def _refuse_difference(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError that names each thing the records depend on which is not as it was."""
    differing = [
        f"{name} was {_brief(before.get(name))}, is {_brief(now.get(name))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if differing:
        raise UsageError(
            f"{path} cannot be resumed: {'; '.join(differing)}", "run as before, or --overwrite, or another --output"
        )


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:36] + '..."'


def _open_locked(path: Path, mode: Mode) -> tuple[IO[bytes], bool]:
    """The file, locked, and whether it was made here. Not one that its maker took away, or replaced, before the lock.

    Raises UsageError.
    """
    for _ in range(OPENINGS):
        refuse_existing(path, mode)
        created = not (mode.takes_existing and path.exists())
        try:
            file: IO[bytes] = open(_real(path), "x+b" if created else "r+b", buffering=0)  # noqa: SIM115
        except (FileExistsError, FileNotFoundError):
            continue  # it came or went in between
        except OSError as fault:
            raise UsageError(f"{path} cannot be written: {fault.strerror}", "another --output") from None
        try:
            _lock(file, path)
            if _is_at(file, path):
                return file, created
        except BaseException:
            file.close()
            raise
        file.close()
    raise UsageError(f"{path}: other processes make and remove it", "wait for them, or another --output")


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Is the open file still what lies at `path`?"""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"{path}: another process is writing to it", "wait for it, or another --output") from None
    except OSError:
        pass  # a file system without locks


def _recover(file: IO[bytes], path: Path, ids: Set[str]) -> dict[str, bool]:
    """Cut a torn last line and read what is done: id -> failed."""
    data = file.read()
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    done: dict[str, bool] = {}
    kept = 0
    for number, line in enumerate(lines, start=1):
        try:
            record = msgspec.json.decode(line, type=dict[str, Any])
            name = record["custom_id"]
        except (msgspec.DecodeError, KeyError, RecursionError):
            if number == len(lines):
                break  # after a power cut the end of a file may be any bytes
            raise UsageError(f"{path}:{number}: not a record of a run", "--overwrite starts anew") from None
        if not isinstance(name, str) or name not in ids or name in done:
            what = "comes twice" if isinstance(name, str) and name in done else "is not in the input"
            raise UsageError(f'{path}:{number}: id "{name}" {what}', "--overwrite starts anew")
        done[name] = is_failed(record)
        kept += len(line) + 1
    if kept < len(data):
        with _writing(path):
            file.truncate(kept)
    return done


def _without_errors(file: IO[bytes], path: Path) -> IO[bytes]:
    """The file again without its error records, replaced whole or not at all.

    Raises StrataError when the disk does not take it.
    """
    file.seek(0)
    lines = file.read().split(b"\n")[:-1]
    kept = [line + b"\n" for line in lines if not is_failed(msgspec.json.decode(line, type=dict[str, Any]))]
    draft = draft_path(path)
    with _writing(draft, "make room, then --retry-errors"):
        fresh: IO[bytes] = open(draft, "w+b", buffering=0)  # noqa: SIM115  # the journal's file from now on
        try:
            _lock(fresh, path)
            _write(fresh, b"".join(kept))
            os.fsync(fresh.fileno())
            os.replace(draft, path)
        except BaseException:
            fresh.close()
            draft.unlink(missing_ok=True)
            raise
    file.close()
    return fresh
