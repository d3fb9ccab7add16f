"""Image classification: networks whose global pool is swapped, from scratch or after training."""
