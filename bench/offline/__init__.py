"""What can be said of GPU kernels on a machine without a GPU, for the measurements `gpu-*` and for tests/gpu.

`driver.py` launches Triton kernels for a GPU that is not there, `code.py` and `ttgir.py` read what the
compiler made of them, `counting.py` counts what plain torch does. Nothing here says how fast a kernel is.
"""
