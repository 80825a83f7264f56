"""The gated delta rule behind a short causal convolution."""

from strata_kernels.gated_delta.reference import gated_delta

__all__ = ["gated_delta"]
