"""The kernels: `tiles` has what all share, `slots` what all share that have many programs for a set.

Sinkhorn has its loops over rows in `passes`, its regimes in `sets` and `chunks`, and images in `windows`.
Both kinds of Bregman ADMM share `badmm`. The entropic one has its formulas and loops in `badmm_e` and
`badmm_e_reverse`, vectors of columns in `badmm_e_columns`, and its regimes in `badmm_e_sets` and
`badmm_e_chunks`; the quadratic one has `badmm_q`, `badmm_q_reverse` and `badmm_q_sets`.
"""
