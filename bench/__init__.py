"""Every claim of speed, memory and convergence: `make bench`, or `python -m bench [NAME ...]`.

Each measurement has a file of its name. The first line of the file says what it measures, `measure(session)`
returns rows, and `summary(rows)`, where there is one, returns what is printed. `report.py` writes CSV and text.

A figure of speed is a ratio of two times (or sizes) from one run on one machine, with the candidates taken in
turns, so that noise hits all alike. The kernels are checked against the reference first where they are timed
alone: a wrong answer is never timed. Whole training steps (mil, graph, swap, svm) are not checked.
"""
