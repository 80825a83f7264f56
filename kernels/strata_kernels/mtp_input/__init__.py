"""What the MTP head's layers start from."""

from strata_kernels.mtp_input.reference import mtp_input

__all__ = ["mtp_input"]
