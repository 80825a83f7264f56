"""How one weight may be stored. Decided by the tensors that are on disk, never by a config. No torch.

A weight is one or several tensors: `X.weight` alone, or `X.weight_packed` with `X.weight_scale`, ... `split_name` takes
the name of any of them apart, `recognise` says what a weight's tensors are. How their values follow from them is told
in `strata_kernels.formats` under the same name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol, cast

from strata_cli.errors import UsageError
from strata_cli.model.families import Shape
from strata_cli.model.weights.formats import dense, int4
from strata_cli.model.weights.stored import Stored, StoredWeight

if TYPE_CHECKING:
    from torch import Tensor

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


class Layout(Protocol):
    """A module of this folder: one way that files hold a weight, for one or several formats of `strata_kernels`."""

    FORMATS: tuple[str, ...]
    REQUIRED: tuple[str, ...]  # parts by suffix of the tensor's name; the first one tells the layout
    OPTIONAL: tuple[str, ...]

    def from_headers(self, parts: Mapping[str, Stored], shape: Shape) -> StoredWeight:
        """The weight of `shape` made of `parts`. Raises UsageError, naming the tensor, for what does not fit."""
        ...

    def check(self, weight: StoredWeight, read: Callable[[Stored], Tensor]) -> None:
        """Compare what only values show. Raises UsageError, naming the tensor."""
        ...

    def filled(self, weight: StoredWeight, role: str) -> Tensor:
        """What stands for a part that this weight lacks and others of its stack have: it changes no value."""
        ...


LAYOUTS = (cast(Layout, int4), cast(Layout, dense))  # the first one whose leading part is there


def split_name(name: str) -> tuple[str, str]:
    """`X.weight_packed` -> (`X.weight`, `_packed`); the part of a name that is a weight of its own is ""."""
    if name.endswith(".weight"):
        return name, ""
    match = PART.match(name)
    return (match["stem"] + "weight", match["part"] or match["other"]) if match else (name, "")


def recognise(parts: Mapping[str, Stored], shape: Shape) -> StoredWeight:
    """The weight of `shape` whose tensors by part are `parts`.

    Raises UsageError, naming the tensor: a format that is not supported, a part missing or in excess, a wrong shape.
    """
    for part, family in UNSUPPORTED.items():
        if part in parts:
            raise UsageError(f"{parts[part].name}: {family} is not supported", SUPPORTED)
    layout = next((layout for layout in LAYOUTS if layout.REQUIRED[0] in parts), LAYOUTS[-1])
    missing = [part for part in layout.REQUIRED if part not in parts]
    if missing:
        first = min(stored.name for stored in parts.values())
        raise UsageError(f"{first}: without {', '.join(missing)} beside it", SUPPORTED)
    for part, stored in parts.items():
        if part not in layout.REQUIRED + layout.OPTIONAL:
            raise UsageError(f"{stored.name}: unexpected beside {parts[layout.REQUIRED[0]].name}", SUPPORTED)
    return layout.from_headers(parts, shape)


def layout_of(weight: StoredWeight) -> Layout:
    """The layout that recognised a weight."""
    return next(layout for layout in LAYOUTS if weight.format in layout.FORMATS)
