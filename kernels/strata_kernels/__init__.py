"""Kernels of strata, each a plain torch `reference.py` that says what is computed. Needs torch alone.

Batch invariance is the rule of the house: a row's result never depends on the other rows of the call. So products run
in row tiles of one fixed shape, reductions run along fixed lengths, and experts' outputs are added in a fixed order.
"""
