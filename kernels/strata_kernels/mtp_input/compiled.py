"""The MTP head's input as a compiled function of addresses. `cpu.py` calls it with tensors."""

from strata_kernels.compiling import kernel
from strata_kernels.norm.compiled import rms_norm
from strata_kernels.product.compiled import lookup, multiply
from strata_kernels.vectors import f32_at, field, i64, void

# Places in a block's table, int64 each; EPS a float32.
EMBEDDING_NORM, HIDDEN_NORM, JOIN, HIDDEN, EPS = range(5)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64))
def mtp_input(x: int, embedding: int, tokens: int, out: int, block: int, rows: int, joined: int, room: int) -> None:
    """out = join(norm(embedding of the tokens), norm(x)). `embedding`: its record; `joined`: [rows, 2 D] to work in."""
    hidden, eps = field(block, HIDDEN), f32_at(block + EPS * 8)
    wide = hidden * 4
    lookup(embedding, tokens, rows, joined, 2 * wide)
    for r in range(rows):
        at = joined + r * 2 * wide
        rms_norm(at, field(block, EMBEDDING_NORM), at, hidden, eps)
        rms_norm(x + r * wide, field(block, HIDDEN_NORM), at + wide, hidden, eps)
    multiply(joined, 2 * wide, rows, field(block, JOIN), 0, 0, out, wide, room)
