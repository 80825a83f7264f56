"""Norms over the last dimension, and elementwise functions with bits of their own."""

from strata_kernels.norm.reference import LANES, in_lanes, in_rows, l2_norm, rms_norm

__all__ = ["LANES", "in_lanes", "in_rows", "l2_norm", "rms_norm"]
