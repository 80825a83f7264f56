"""Headers of safetensors files, and which files make up a checkpoint. No torch.

File format: 8 bytes little-endian length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
"""

import os
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from strata_cli.errors import UsageError
from strata_cli.model.files import one_line, parse_object, present, read_object, shown
from strata_cli.model.weights.stored import ITEM_BYTES, Stored

INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000  # bytes; safetensors' own
NAMED = 3  # faults named in a message, the rest are counted


def read_header(file: Path) -> list[Stored]:
    """The tensors of one safetensors file. Raises UsageError when it is truncated or not such a file."""
    try:
        with file.open("rb") as stream:
            stamp = stamp_of(stream)
            size = stamp[0]
            length = int.from_bytes(stream.read(8), "little")
            if size >= 8 and length > HEADER_LIMIT:
                raise UsageError(f"{file} is not a safetensors file", "a Git LFS pointer would need `git lfs pull`")
            text = stream.read(length)
    except OSError as fault:
        raise UsageError(f"cannot read {file}: {fault.strerror}") from fault
    data = 8 + length
    if size < data:
        raise UsageError(f"{file} is truncated: {size} bytes, its header alone has {data}", "fetch it again")
    header = parse_object(text, f"{file} header", "fetch it again")
    header.pop("__metadata__", None)
    tensors = [_stored(file, stamp, name, entry, data) for name, entry in header.items()]
    end = max((tensor.offset + tensor.size_bytes for tensor in tensors), default=data)
    if size < end:
        raise UsageError(f"{file} is truncated: {size} bytes of {end}", "fetch it again")
    for tensor in tensors:
        width = ITEM_BYTES.get(tensor.dtype)
        if width and tensor.size_bytes != prod(tensor.shape) * width:
            what = f"{tensor.name} of {tensor.dtype} {list(tensor.shape)} has {tensor.size_bytes} bytes"
            raise UsageError(f"{file} has a corrupt header: {what}", "fetch it again")
    return tensors


def _stored(file: Path, stamp: tuple[int, int], name: str, entry: Any, data: int) -> Stored:
    """One entry of a header; offsets in it count from `data`, where the header ends. Raises UsageError."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if (
            0 <= start <= stop and all(isinstance(n, int) and n >= 0 for n in shape)
        ):
            return Stored(file, name, dtype, tuple(shape), data + start, stop - start, stamp)
    raise UsageError(f"{file} has a corrupt header: {one_line(name)} is {shown(entry)}", "fetch it again")


def stamp_of(stream: BinaryIO) -> tuple[int, int]:
    """Size and time of change of an open file: another one under its name, or a changed one, has others."""
    found = os.fstat(stream.fileno())
    return found.st_size, found.st_mtime_ns


def weight_files(path: Path) -> list[Path]:
    """The files of a checkpoint: those its index lists and any with an MTP head beside them, or all there are."""
    if path.is_file():
        return [path]
    files = sorted(path.glob("*.safetensors"))
    index = path / INDEX
    if present(index):
        names = read_object(index, "fetch it again").get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UsageError(f"{index}: weight_map must be an object of file names", "fetch it again")
        listed = set(names.values())
        missing = sorted(listed - {file.name for file in files})
        if missing:
            raise UsageError(
                f"{path}: {len(missing)} of {len(listed)} files are missing: {some(missing)}", "fetch them"
            )
        files = [file for file in files if file.name in listed or "mtp" in file.name]
    if not files:
        raise UsageError(f"{path} has no *.safetensors files" if path.is_dir() else f"no such checkpoint: {path}")
    return files


def some(names: Iterable[str]) -> str:
    """A few names, then a count."""
    names = list(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
