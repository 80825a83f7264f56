"""Attention over paged keys and values."""

from strata_kernels.attention.reference import attention

__all__ = ["attention"]
