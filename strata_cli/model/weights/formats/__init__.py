"""How one weight may be stored. Decided by the tensors that are on disk, never by a config.

A weight is one or several tensors: `X.weight` alone, or `X.weight_packed` with `X.weight_scale`, ... `split_name` takes
the name of any of them apart, `recognise` says what a weight's tensors are.
"""

import re
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from strata_cli.errors import UsageError
from strata_cli.model.weights import Stored
from strata_cli.model.weights.formats.dense import Dense
from strata_cli.model.weights.formats.int4 import PackedInt

SUPPORTED = "supported: BF16, F16, F32, compressed-tensors int4 and int8 (pack-quantized)"

PART = re.compile(r"(?P<stem>.+\.)(?:weight(?P<part>_[a-z_0-9]+)|(?P<other>qweight|qzeros|scales|g_idx|trellis))$")

# A part that only one family of formats has -> what to call it
UNSUPPORTED = {
    "qweight": "GPTQ or AWQ",
    "trellis": "EXL3",
    "_scale_inv": "FP8 in blocks",
    "_scale_2": "NVFP4 (modelopt)",
    "_global_scale": "NVFP4 (compressed-tensors)",
}


class Format(Protocol):
    """How one weight is stored, checked against the shape it must have."""

    @property
    def label(self) -> str: ...

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The weight from its tensors by part."""
        ...


def split_name(name: str) -> tuple[str, str]:
    """`X.weight_packed` -> (`X.weight`, `_packed`); the part of a name that is a weight of its own is ""."""
    match = PART.match(name)
    return (match["stem"] + "weight", match["part"] or match["other"]) if match else (name, "")


def recognise(parts: Mapping[str, Stored], shape: tuple[int, ...]) -> Format:
    """The format of a weight of `shape` whose tensors by part are `parts`.

    Raises UsageError, naming the tensor: a format that is not supported, a part missing or in excess, a wrong shape.
    """
    for part, family in UNSUPPORTED.items():
        if part in parts:
            raise UsageError(f"{parts[part].name}: {family} is not supported", SUPPORTED)
    kind: type[PackedInt] | type[Dense] = PackedInt if "_packed" in parts else Dense
    missing = [part for part in kind.REQUIRED if part not in parts]
    if missing:
        first = min(stored.name for stored in parts.values())
        raise UsageError(f"{first}: without {', '.join(missing)} beside it", SUPPORTED)
    for part, stored in parts.items():
        if part not in kind.REQUIRED + kind.OPTIONAL:
            raise UsageError(f"{stored.name}: unexpected beside {parts[kind.REQUIRED[0]].name}", SUPPORTED)
    return kind.from_headers(parts, shape)
