"""Routed and shared experts."""

from strata_kernels.moe_gemm.reference import experts_grouped, route

__all__ = ["experts_grouped", "route"]
