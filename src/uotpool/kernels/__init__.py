"""The fused CPU kernels: `library` loads them, `ops` makes them torch operations."""
