"""The gated delta rule, step by step."""

from strata_kernels.gated_delta.reference import gated_delta

__all__ = ["gated_delta"]
