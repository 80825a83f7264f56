"""Which function runs: (block, formats of its weights, device) -> sibling module. The one place of that choice.

A block's siblings live in its folder: `reference.py` (torch, any device, the specification), `cpu.py`, `triton.py`.
Needs no torch until a sibling is asked for.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from types import ModuleType

from strata_kernels import compiling

# (block, device) -> sibling, and the formats it reads. What is not here is the reference's.
CPU_FORMATS = frozenset({"f32", "bf16", "f16", "int4", "int8"})
FAST: dict[tuple[str, str], tuple[str, frozenset[str]]] = {
    (what, "cpu"): ("cpu", CPU_FORMATS)
    for what in ("product", "attention", "gated_delta", "experts", "mtp_input", "head")
}


def choose(what: str, formats: Iterable[str], device: str) -> str:
    """`reference`, `cpu` or `triton`: the sibling of block `what` for weights of these formats on a device type."""
    name, reads = FAST.get((what, device), ("reference", frozenset()))
    if not reads.issuperset(formats) or (name == "cpu" and compiling.fault()):
        return "reference"
    return name


@cache
def sibling(what: str, formats: tuple[str, ...], device: str) -> ModuleType:
    """The module that runs block `what` for weights of these formats on a device type."""
    return import_module(f"strata_kernels.{what}.{choose(what, formats, device)}")


REFERENCE_TILE = 8  # torch's vector and scalar functions round differently: rows of it are whole vectors together


def row_tile(device: str) -> int:
    """Windows are padded to multiples of so many rows on this device type."""
    return REFERENCE_TILE if device != "cpu" or compiling.fault() else 1
