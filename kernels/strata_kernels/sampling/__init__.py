"""Counter-based noise."""

from strata_kernels.sampling.reference import PURPOSES, gumbel, philox, uniform

__all__ = ["PURPOSES", "gumbel", "philox", "uniform"]
