"""The fused GPU kernels in Triton: `launch` runs them, `ops` makes them torch operations.

Nothing here imports triton before a call needs it.
"""
