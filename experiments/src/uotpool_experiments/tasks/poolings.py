"""Groups of poolings that have a name in sweeps and tables."""

from __future__ import annotations

# The rows of the paper's Table 1, in their order.
PAPER = (
    *("add", "mean", "max", "deepset", "mixed", "gated-mixed", "set2set", "attention", "gated-attention"),
    *("dynamic", "gnp", "asap", "sagp"),
    *("uotp-sinkhorn-paper", "uotp-badmm-e-paper", "uotp-badmm-q-paper"),
)
# Our layers that solve the problem exactly.
UOTP = ("uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q")
