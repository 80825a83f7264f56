"""From files to tensors: `safetensors` finds and checks what is on disk, `formats` turns it into numbers."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file, as its header describes it.

    `dtype` in the words of safetensors: BF16, F32, I32, ...; its data are `size_bytes` at `offset` of the file.
    """

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model under canonical names, on one device. One-dimensional ones are float32.

    `mtp` has the head's names without `mtp.`; None: no head. `warnings`: what a person should know about the values.
    """

    main: dict[str, Tensor]
    mtp: dict[str, Tensor] | None
    warnings: tuple[str, ...] = ()
