"""Regimes: bags of real images with questions whose best pooling is known in advance."""
