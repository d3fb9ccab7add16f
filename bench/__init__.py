"""Benchmarks: `make bench`, or `python -m bench [NAME ...]`.

Every figure is a ratio of two times (or sizes) from one run on one machine, with the candidates taken in turns,
so that noise hits all alike. What runs here is checked against the reference first: a wrong answer is never
timed.

`python -m bench.witnesses` stands apart: it trains models, and its figures are accuracies.
"""
