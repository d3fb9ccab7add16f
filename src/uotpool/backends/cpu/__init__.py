"""The fused CPU kernels: `library` loads them, `backend` calls them."""
