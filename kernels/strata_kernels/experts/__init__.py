"""Routed and shared experts, or a dense MLP."""

from strata_kernels.experts.reference import experts

__all__ = ["experts"]
