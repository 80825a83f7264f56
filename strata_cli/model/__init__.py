"""Models in torch: configuration, architectures, the MTP head, and the way from files to tensors.

The shape alphabet of this package, used in every docstring and in variable names where a shape is meant:

    R  rows of a window (tokens of all slots, prompt and decode rows side by side)
    S  slots
    D  hidden size
    H  query heads
    G  key/value heads
    E  experts
    K  experts per token
    V  vocabulary (rows of the embedding)
    N  pages of the block pool
"""
