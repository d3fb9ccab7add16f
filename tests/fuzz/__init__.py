"""Random problems over all solvers, layouts, precisions and weights, and what must hold of each of them.

`python -m tests.fuzz 10000` runs that many (seeds 0, 1, ...) and prints what failed; a part of them runs in the
tests. `python -m tests.fuzz 2000 4000` runs 2000 from seed 4000 on. A family of problems is a module with
`draw`, from a seed to a case, and `check`, from a case to what was found.
"""
