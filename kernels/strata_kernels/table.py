"""Which function runs: (block, format of its weights, device) -> function. The one place of that choice.

A block's siblings live in its folder: `reference.py` (torch, any device, the specification), `cpu.py`, `triton.py`.
"""
