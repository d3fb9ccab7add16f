"""Prints the coefficients of `exp2_fraction` in simd.h.

2^f = 1 + f g(f), with g interpolated at the Chebyshev nodes of [-1/2, 1/2].
"""

import mpmath as mp

mp.mp.dps = 40


def g(f: mp.mpf) -> mp.mpf:
    return mp.expm1(f * mp.log(2)) / f if abs(f) > 1e-30 else mp.log(2)


for degree in (6, 11):
    nodes = [mp.cos(mp.pi * (2 * i + 1) / (2 * degree)) / 2 for i in range(degree)]
    powers = mp.matrix(degree, degree)
    for i, node in enumerate(nodes):
        for j in range(degree):
            powers[i, j] = node**j
    coefficients = mp.lu_solve(powers, mp.matrix([g(node) for node in nodes]))
    grid = [mp.mpf(k) / 2000 for k in range(-1000, 1001)]
    error = max(abs((1 + f * mp.polyval(list(coefficients)[::-1], f)) / mp.power(2, f) - 1) for f in grid)
    print(f"degree {degree}, relative error {mp.nstr(error, 3)}")
    for c in coefficients:
        print("   ", mp.nstr(c, 18))
