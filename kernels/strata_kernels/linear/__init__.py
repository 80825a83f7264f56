"""Matrix products over the rows of a window."""

from strata_kernels.linear.reference import ROW_TILE, linear, padded_rows

__all__ = ["ROW_TILE", "linear", "padded_rows"]
