"""The results file of a run that may be killed at any moment and taken up again. No torch.

Records are only ever appended, each in one write. Beside `out.jsonl` lies `out.jsonl.meta.json`, written before the
first record: what the records depend on (model, settings, sampling, input) and the seed that all others derive from.
So a resumed run gives the records of an uninterrupted one, or refuses and says what differs.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from strata_cli.engine.seeds import fresh_seed
from strata_cli.errors import StrataError, UsageError

SCHEMA = 1


def meta_path(output: Path) -> Path:
    """The sidecar of a results file."""
    return output.with_name(output.name + ".meta.json")


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
        run of this input wrote; another process writes to it.
        """
        refuse_existing(path, mode)
        meta = _read_meta(path) if mode.resumes else None
        if meta is not None:
            _refuse_difference(path, meta.get("depends_on", {}), json.loads(json.dumps(depends_on)))
        elif mode.resumes and path.exists() and path.stat().st_size:
            raise UsageError(f"{path} cannot be resumed: {meta_path(path)} is missing", "--overwrite starts anew")
        created = not path.exists()
        try:
            file: IO[bytes] = open(path, "x+b" if created else "r+b")  # noqa: SIM115  # close() closes it
        except OSError as fault:
            raise UsageError(f"{path} cannot be written: {fault.strerror}") from None
        try:
            _lock(file, path)
            if meta is None:
                meta = {"schema": SCHEMA, "seed": fresh_seed(), "depends_on": depends_on}
                return cls(path, meta["seed"], {}, file, meta, False, created)
            done = _recover(file, path, ids)
        except BaseException:
            file.close()
            raise
        drop = mode.retry_errors and any(done.values())
        if drop:
            done = {name: failed for name, failed in done.items() if not failed}
        return cls(path, meta["seed"], done, file, None, drop, created)

    def begin(self) -> None:
        """The run starts: a fresh file is emptied and gets its sidecar, a retried one loses its error records."""
        if self._fresh is not None:
            self._file.truncate(0)
            _write_meta(self.path, self._fresh)
        elif self._drop_errors:
            self._file = _without_errors(self._file, self.path)
        self._created = False
        self._file.seek(0, os.SEEK_END)

    def append(self, record: bytes) -> None:
        """Write one record, newline included, and hand it to the system.

        Raises StrataError when the disk does not take it; a torn line is left for `--resume` to cut.
        """
        try:
            self._file.write(record)
            self._file.flush()
        except OSError as fault:
            raise StrataError(f"{self.path} cannot be written: {fault.strerror}", "make room, then --resume") from None

    def close(self) -> None:
        """Close the file, its records on the disk. One that this run made and never began is taken away again."""
        if self._file.closed:
            return
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            if self._created:
                self.path.unlink()
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refuse_existing(path: Path, mode: Mode) -> None:
    """Raise UsageError where the output exists and `mode` does not say what to do with it."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", "without --output the records go to stdout")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: no directory {path.parent}")
    if path.exists() and not (mode.resumes or mode.overwrite):
        raise UsageError(f"{path} exists", "--resume goes on with it, --overwrite starts anew")


def is_failed(record: Mapping[str, Any]) -> bool:
    """Is this record, of either shape, an error?"""
    return record.get("error") is not None


def _read_meta(path: Path) -> dict[str, Any] | None:
    sidecar = meta_path(path)
    if not sidecar.is_file():
        return None
    try:
        meta = json.loads(sidecar.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise UsageError(f"{sidecar} is not valid JSON: {fault}", "--overwrite starts anew") from None
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA or not isinstance(meta.get("seed"), int):
        raise UsageError(f"{sidecar} is not of this version of strata", "--overwrite starts anew")
    return meta


def _write_meta(path: Path, meta: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    sidecar = meta_path(path)
    draft = sidecar.with_name(sidecar.name + ".new")
    try:
        draft.write_text(json.dumps(meta, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(draft, sidecar)
    except OSError as fault:
        raise StrataError(f"{sidecar} cannot be written: {fault.strerror}") from None


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
        except (msgspec.DecodeError, KeyError):
            if number == len(lines):
                break  # after a power cut the end of a file may be any bytes
            raise UsageError(f"{path}:{number}: not a record of a run", "--overwrite starts anew") from None
        if not isinstance(name, str) or name not in ids or name in done:
            what = "comes twice" if isinstance(name, str) and name in done else "is not in the input"
            raise UsageError(f'{path}:{number}: id "{name}" {what}', "--overwrite starts anew")
        done[name] = is_failed(record)
        kept += len(line) + 1
    if kept < len(data):
        file.truncate(kept)
    return done


def _without_errors(file: IO[bytes], path: Path) -> IO[bytes]:
    """The file again without its error records, replaced whole or not at all."""
    file.seek(0)
    kept = [line for line in file if not is_failed(msgspec.json.decode(line, type=dict[str, Any]))]
    draft = path.with_name(path.name + ".new")
    fresh = open(draft, "w+b")  # noqa: SIM115  # the journal's file from now on
    _lock(fresh, path)
    fresh.writelines(kept)
    fresh.flush()
    os.fsync(fresh.fileno())
    os.replace(draft, path)
    file.close()
    return fresh
