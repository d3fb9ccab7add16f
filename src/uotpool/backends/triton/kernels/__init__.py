"""The kernels: `tiles` has what all share, `passes` the loops over rows, `sets` and `chunks` the regimes.

These are of Sinkhorn. Entropic Bregman ADMM has its formulas and loops in `badmm_e` and `badmm_e_reverse`,
vectors of columns in `badmm_e_columns`, and its regimes in `badmm_e_sets` and `badmm_e_chunks`.
"""
