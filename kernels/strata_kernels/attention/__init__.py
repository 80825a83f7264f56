"""Attention over paged keys and values."""

from strata_kernels.attention.reference import KV_SPLIT_PAGES, QUERY_TILE, paged_attention, rope

__all__ = ["KV_SPLIT_PAGES", "QUERY_TILE", "paged_attention", "rope"]
