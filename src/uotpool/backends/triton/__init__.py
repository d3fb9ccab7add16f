"""The fused GPU kernels in Triton: `calls` launches them, `ops` and `operators` make them torch operations.

Nothing here imports triton before a call needs it.
"""
