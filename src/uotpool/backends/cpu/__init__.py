"""The fused CPU kernels: `library` loads them, `ops` and `windows` make them torch operations; `scratch`."""
