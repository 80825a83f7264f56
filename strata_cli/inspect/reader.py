"""A step-statistics file as windows, in chunks, forgiving: older files, unknown fields, a torn last line, no header."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec

from strata_cli.engine.record import StatsHeader, StepRecord

CHUNK_BYTES = 1 << 17


# What an older engine wrote, and which of it may be a number (or a list, for `slots`) in place of an array.
OLDER = ("kind", "t", "slots", "rows", "drafts", "verified", "accepted", "step_ms", "keeps", "ctx")


@dataclass(slots=True)
class Reader:
    """Iterates over chunks of windows; afterwards says what kind of file it was.

    `t` of the windows runs on over the headers of resumed runs, and is the sum of step_ms where the file has none.
    """

    stream: IO[bytes]
    headers: list[StatsHeader] = field(default_factory=list)
    lines: int = 0
    windows: int = 0
    bad: list[int] = field(default_factory=list)  # line numbers that are neither a window nor a header (the first 10)
    bad_lines: int = 0
    torn: bool = False  # the last line has no end and no sense: a run that was cut off
    older: int = 0  # windows without the arrays by slot
    derived: int = 0  # windows whose acceptance by slot was worked out from L and keeps
    _t: float = 0.0
    _base: float = 0.0  # where the current run began on the file's time line

    def __iter__(self) -> Iterator[list[StepRecord]]:
        rest = b""
        while data := self.stream.read(CHUNK_BYTES):
            head, newline, tail = data.rpartition(b"\n")
            if newline:
                yield self._chunk(rest + head + newline)
                rest = tail
            else:
                rest += tail
        if rest.strip():
            before = self.bad_lines
            windows = self._chunk(rest)
            if self.bad_lines > before:
                self.bad_lines, self.torn = before, True
                self.bad = [n for n in self.bad if n < self.lines]
            yield windows

    def _chunk(self, data: bytes) -> list[StepRecord]:
        try:  # all at once; a header, a blank or a bad line among them sends the chunk line by line
            lines = _windows.decode_lines(data)
            self.lines += len(lines)
        except msgspec.MsgspecError:
            lines = []
            for text in data.splitlines():
                if (line := self._line(text)) is not None:
                    self._complete([line])  # one by one: a header sets the time line of what follows it
                    lines.append(line)
        else:
            self._complete(lines)
        self.windows += len(lines)
        return lines

    def _complete(self, lines: list[StepRecord]) -> None:
        """Fill in what the lines leave out, and put them on the file's time line."""
        for line in lines:
            n = len(line.slot)
            if not (
                n == len(line.L) == len(line.keeps) == len(line.ctx) == len(line.reason) == len(line.prompt)
                and n == len(line.drafted_by) == len(line.accepted_by)
            ):
                self._fill(line)
            if line.verified < 0:
                line.verified = line.drafts
            self._t = self._t + line.step_ms / 1000 if line.t < 0 else self._base + line.t
            line.t = self._t

    def _line(self, text: bytes) -> StepRecord | None:
        self.lines += 1
        if not text.strip():
            return None
        for decode in (_windows.decode, self._header, self._older):
            try:
                return decode(text)
            except (msgspec.MsgspecError, ValueError):
                continue
        self.bad_lines += 1
        if len(self.bad) < 10:
            self.bad.append(self.lines)
        return None

    def _header(self, text: bytes) -> None:
        self.headers.append(_header.decode(text))
        self._base = self._t

    def _older(self, text: bytes) -> StepRecord:
        """A line with numbers where this format has arrays."""
        line = msgspec.json.decode(text, type=dict[str, Any])
        line = {name: line[name] for name in OLDER if name in line}
        if isinstance(slots := line.get("slots"), list):
            line["slots"] = len(slots)
        if not isinstance(keeps := line.get("keeps", 0), list):
            line["keeps"] = keeps = [keeps]
        if not isinstance(ctx := line.get("ctx", 0), list):
            line["ctx"] = [ctx] * len(keeps)
        return msgspec.convert(line, StepRecord)

    def _fill(self, line: StepRecord) -> None:
        """Complete the arrays by slot of a line that lacks some."""
        n = len(line.keeps)
        if len(line.slot) != n:  # the place in the array is all that tells the slots apart
            line.slot = list(range(n))
            self.older += 1
        if len(line.L) != n:
            line.L = (
                [1 + line.drafts // n] * n
                if n and line.slots == n and line.rows == n + line.drafts and line.drafts % n == 0
                else [0] * n
            )
        line.prompt = line.prompt if len(line.prompt) == n else [0] * n
        line.ctx = line.ctx if len(line.ctx) == n else [0] * n
        line.reason = line.reason if len(line.reason) == n else ["unknown"] * n
        line.request = line.request if len(line.request) == n else []
        if len(line.accepted_by) != n or len(line.drafted_by) != n:
            line.drafted_by = [max(L - 1, 0) for L in line.L]
            line.accepted_by = [min(max(k - 1, 0), d) for k, d in zip(line.keeps, line.drafted_by)]
            self.derived += 1


_windows = msgspec.json.Decoder(StepRecord)
_header = msgspec.json.Decoder(StatsHeader)
