"""Image classification by networks with a swapped global pool, from scratch or after training."""
