"""Checkpoints of safetensors files: headers first, then, when everything is found to be right, the weights.

File format: 8 bytes little-endian length, a JSON header {name: {dtype, shape, data_offsets}}, the data.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strata_cli.errors import StrataError, UsageError
from strata_cli.model.config import ModelConfig
from strata_cli.model.files import one_line, parse_object, present, read_object, shown
from strata_cli.model.qwen3_5_moe import MTP, Shape, expert_parts, mtp_tensor_shapes, rename, tensor_shapes
from strata_cli.model.weights import Stored, Weights
from strata_cli.model.weights.formats import Format, recognise, split_name

INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000  # bytes; safetensors' own
TORCH_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
}  # those that the formats read
ITEM_BYTES = {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()}
NAMED = 3  # faults named in a message, the rest are counted


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """What a checkpoint's headers say. `text`: the formats that hold its main weights, the largest share first."""

    text: str
    has_mtp: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """A weight on disk that fills `shape[0]` rows of a tensor: its tensors by part, and how to read them."""

    parts: dict[str, Stored]
    shape: Shape
    format: Format


def open_checkpoint(path: Path) -> "Checkpoint":
    """Read the headers of a directory's safetensors files, or of one file.

    Raises UsageError: nothing there, a file that is missing, truncated or corrupt, a tensor that lies in two files.
    """
    stored: dict[str, Stored] = {}
    for file in _files(path):
        for tensor in read_header(file):
            name = rename(tensor.name)
            if name is None:
                continue
            if name in stored:
                other = stored[name]
                raise UsageError(f"{path}: {tensor.name} is there twice, in {other.file.name} and {file.name}")
            stored[name] = tensor
    return Checkpoint(path, stored)


class Checkpoint:
    """The tensors of a checkpoint by canonical name, known by their headers."""

    def __init__(self, path: Path, stored: dict[str, Stored]):
        self.path = path
        self.weights: dict[str, dict[str, Stored]] = {}  # name of a weight -> its tensors by part
        for name, tensor in stored.items():
            weight, part = split_name(name)
            self.weights.setdefault(weight, {})[part] = tensor

    @property
    def has_mtp(self) -> bool:
        return any(name.startswith(MTP) for name in self.weights)

    def check(self, config: ModelConfig, graft: "Checkpoint | None" = None) -> CheckpointFormat:
        """Compare the headers with what `config` needs; nothing else is read.

        `graft`: another checkpoint whose MTP head stands in for this one's.
        Raises UsageError naming tensors that are missing, unexpected, misshapen or in a format that is not supported.
        """
        main, head = self._plan(config, graft)
        sizes: Counter[str] = Counter()
        for pieces in main.values():
            for piece in pieces:
                sizes[piece.format.label] += prod(piece.shape)
        shares = [label for label, size in sizes.most_common() if size >= 0.05 * sizes.total()]
        return CheckpointFormat(" + ".join(shares), head is not None)

    def load(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str, graft: "Checkpoint | None" = None
    ) -> Weights:
        """Read all weights as `dtype` (one-dimensional ones as float32) onto `device`, after the checks of `check`."""
        main_plan, head_plan = self._plan(config, graft)
        main = _read(main_plan, tensor_shapes(config), dtype, device)
        main.setdefault("lm_head.weight", main["embed_tokens.weight"])
        if head_plan is None:
            return Weights(main, None)
        head = _read(head_plan, mtp_tensor_shapes(config), dtype, device)
        return Weights(main, head, tuple(_untrained(head, graft or self)))

    def _plan(
        self, config: ModelConfig, graft: "Checkpoint | None"
    ) -> tuple[dict[str, list[Piece]], dict[str, list[Piece]] | None]:
        """Where each tensor of the main model, and of the MTP head if there is one, comes from."""
        shapes = tensor_shapes(config)
        if config.tie_word_embeddings and "lm_head.weight" not in self.weights:
            del shapes["lm_head.weight"]
        main = self._match({name: parts for name, parts in self.weights.items() if not name.startswith(MTP)}, shapes)
        source = graft or self
        if not source.has_mtp or (graft is None and config.mtp_num_hidden_layers == 0):
            if graft:
                raise UsageError(f"{graft.path} has no MTP head", "its tensors would be named mtp.*")
            return main, None
        heads = {name: parts for name, parts in source.weights.items() if name.startswith(MTP)}
        wanted = {MTP + name: shape for name, shape in mtp_tensor_shapes(config).items()}
        return main, {name.removeprefix(MTP): pieces for name, pieces in source._match(heads, wanted).items()}

    def _match(self, found: dict[str, dict[str, Stored]], wanted: dict[str, Shape]) -> dict[str, list[Piece]]:
        """The pieces of every tensor in `wanted`, all of `found` used. Raises UsageError with what does not match."""
        left, missing, wrong = dict(found), [], []
        matched: dict[str, list[Piece]] = {}
        for name, shape in wanted.items():
            split = expert_parts(name, shape)
            pieces = split if any(part in left for part in split) else {name: shape}
            matched[name] = []
            for piece, size in pieces.items():
                parts = left.pop(piece, None)
                if parts is None:
                    missing.append(piece)
                    continue
                try:
                    matched[name].append(Piece(parts, size, recognise(parts, size)))
                except UsageError as fault:
                    wrong.append(str(fault))
        unexpected = [stored.name for parts in left.values() for stored in parts.values()]
        faults = [
            f"{what} {_some(names)}" for what, names in (("missing", missing), ("unexpected", unexpected)) if names
        ]
        if faults or wrong:
            raise UsageError(f"{self.path}: " + "; ".join(faults + ([_some(wrong)] if wrong else [])))
        return matched


def read_header(file: Path) -> list[Stored]:
    """The tensors of one safetensors file. Raises UsageError when it is truncated or not such a file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
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
    tensors = [_stored(file, name, entry, data) for name, entry in header.items()]
    end = max((tensor.offset + tensor.size_bytes for tensor in tensors), default=data)
    if size < end:
        raise UsageError(f"{file} is truncated: {size} bytes of {end}", "fetch it again")
    for tensor in tensors:
        width = ITEM_BYTES.get(tensor.dtype)
        if width and tensor.size_bytes != prod(tensor.shape) * width:
            what = f"{tensor.name} of {tensor.dtype} {list(tensor.shape)} has {tensor.size_bytes} bytes"
            raise UsageError(f"{file} has a corrupt header: {what}", "fetch it again")
    return tensors


def _stored(file: Path, name: str, entry: Any, data: int) -> Stored:
    """One entry of a header; offsets in it count from `data`, where the header ends. Raises UsageError."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if (
            0 <= start <= stop and all(isinstance(n, int) and n >= 0 for n in shape)
        ):
            return Stored(file, name, dtype, tuple(shape), data + start, stop - start)
    raise UsageError(f"{file} has a corrupt header: {one_line(name)} is {shown(entry)}", "fetch it again")


def read_tensor(stored: Stored) -> Tensor:
    """The data of one tensor, by plain reading: torch maps a whole file privately, which large ones may be refused."""
    raw = torch.empty(stored.size_bytes, dtype=torch.uint8)
    with stored.file.open("rb", buffering=0) as stream:
        stream.seek(stored.offset)
        view, done = raw.numpy().data, 0
        while done < stored.size_bytes:
            count = stream.readinto(view[done:])
            if not count:
                raise StrataError(f"{stored.file} ended while {stored.name} was read", "did it change meanwhile?")
            done += count
    return raw.view(TORCH_DTYPES[stored.dtype]).view(stored.shape)


def _files(path: Path) -> list[Path]:
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
                f"{path}: {len(missing)} of {len(listed)} files are missing: {_some(missing)}", "fetch them"
            )
        files = [file for file in files if file.name in listed or "mtp" in file.name]
    if not files:
        raise UsageError(f"{path} has no *.safetensors files" if path.is_dir() else f"no such checkpoint: {path}")
    return files


def _read(
    plan: dict[str, list[Piece]], shapes: dict[str, Shape], dtype: torch.dtype, device: torch.device | str
) -> dict[str, Tensor]:
    """The tensors of a plan, each piece decoded into its rows."""
    tensors = {}
    for name, pieces in plan.items():
        shape = shapes[name]
        wanted = torch.float32 if len(shape) == 1 else dtype
        tensor = torch.empty(shape, dtype=wanted, device=device)
        rows, done = tensor.flatten(0, 1) if len(pieces) > 1 else tensor, 0
        for piece in pieces:
            parts = {part: read_tensor(stored) for part, stored in piece.parts.items()}
            rows[done : done + piece.shape[0]] = piece.format.decode(parts, wanted)
            done += piece.shape[0]
        tensors[name] = tensor
    return tensors


def _some(names: Iterable[str]) -> str:
    """A few names, then a count."""
    names = list(names)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


# A head as initialised and never trained: normal numbers of this spread in every matrix. Trained ones have .008 to .014
# and a kurtosis of 5 to 15.
INITIAL_STD = 0.02
ENOUGH_NUMBERS = 1_000_000  # below, tiny models: their spread and tails say little


def _untrained(head: dict[str, Tensor], source: Checkpoint) -> list[str]:
    """A warning if the MTP head looks as it was initialised."""
    matrices = [w.float() for name, w in head.items() if w.ndim == 2 and ("_proj" in name or name == "fc.weight")]
    if sum(w.numel() for w in matrices) < ENOUGH_NUMBERS:
        return []
    for w in matrices:
        std = w.std()
        kurtosis = ((w - w.mean()) / std).pow(4).mean()
        if abs(std / INITIAL_STD - 1) > 0.05 or abs(kurtosis - 3) > 0.2:
            return []
    return [
        f"the MTP head of {source.path} looks untrained (std {INITIAL_STD} throughout, normal): few drafts will hold"
    ]
