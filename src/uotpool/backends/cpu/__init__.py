"""The fused CPU kernels: `library` loads them, `ops` and `operators` make them torch operations."""
