"""Bytes that the compiled blocks of a CPU work in. No torch, no numba: planned before anything exists.

One room serves all blocks, as they run one after the other; it grows to the largest that was asked for. `groups` is the
most groups of columns that any of the block's matrices has (0: none has scales).
"""

from strata_kernels.layout import PAGE_TOKENS
from strata_kernels.params import AttentionParams, BlockParams, ExpertsParams, GatedDeltaParams, MtpInputParams

LANES = 16  # of the widest vectors
PANEL_COLUMNS = 128  # columns of a weight that are unpacked at once
PANEL_ROWS = 2 * LANES
PIECE = 128  # rows of an expert that are multiplied at once
QUERIES = 32  # rows times heads that read keys together


def product_bytes(groups: int) -> int:
    """A transposed tile, numbers of a panel's rows, the panel, scales and biases of its rows."""
    return 4 * LANES * LANES + 8 * PANEL_ROWS + 4 * PANEL_ROWS * (PANEL_COLUMNS + 2 * (groups + 1))


def bank_bytes(rows: int, ranks: int, experts: int, hidden: int, inner: int, groups: int) -> int:
    """Pairs (row, rank) sorted by expert, rows of one expert, outputs of all pairs, and a product's."""
    pairs = rows * ranks
    return (
        product_bytes(groups)
        + 8 * (experts + 1 + 2 * pairs)
        + 4 * (min(PIECE, pairs) * (hidden + 2 * inner) + pairs * hidden)
    )


def attention_bytes(p: AttentionParams, rows: int) -> int:
    projected = ((1 + p.gated) * p.heads + 2 * p.kv_heads) * p.head_dim
    queries = max(QUERIES, p.heads // p.kv_heads)
    return 4 * (rows * (p.hidden + projected + p.heads * p.head_dim) + queries * (2 * p.head_dim + PAGE_TOKENS + 2))


def gated_delta_bytes(p: GatedDeltaParams, rows: int) -> int:
    values = p.value_heads * p.value_dim
    return 4 * (rows * (p.hidden + 2 * p.channels + 2 * values + 2 * p.value_heads) + p.key_dim * LANES)


def experts_bytes(p: ExpertsParams, rows: int) -> int:
    return 4 * (rows * (2 * p.hidden + p.experts + 3 * p.top_k + 2 * p.shared_inner + 1) + 2 * p.experts)


def mtp_input_bytes(p: MtpInputParams, rows: int) -> int:
    return 4 * rows * 2 * p.hidden


def block_bytes(p: BlockParams, rows: int, groups: int) -> int:
    """All that a block of these parameters works in for so many rows."""
    if isinstance(p, ExpertsParams):
        room = product_bytes(groups)
        if p.experts:
            room = bank_bytes(rows, p.top_k, p.experts, p.hidden, p.inner, groups)
        return room + experts_bytes(p, rows)
    if isinstance(p, AttentionParams):
        return product_bytes(groups) + attention_bytes(p, rows)
    if isinstance(p, GatedDeltaParams):
        return product_bytes(groups) + gated_delta_bytes(p, rows)
    if isinstance(p, MtpInputParams):
        return product_bytes(groups) + mtp_input_bytes(p, rows)
    return product_bytes(groups)
