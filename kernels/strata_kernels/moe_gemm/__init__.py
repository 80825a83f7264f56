"""Routed and shared experts."""

from strata_kernels.moe_gemm.reference import experts_all, experts_grouped, route

__all__ = ["experts_all", "experts_grouped", "route"]
