"""Norms over the last dimension."""

from strata_kernels.norm.reference import l2_norm, rms_norm

__all__ = ["l2_norm", "rms_norm"]
