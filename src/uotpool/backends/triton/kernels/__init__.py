"""Sinkhorn as passes over chunks of the rows of sets, in the language of Triton.

Let Z = scale X, top the entry of each column of X where Z is largest, x = X - top and z = scale x, so
z <= 0. Potentials and sums are in the units of Z and relative to the tops. Module k does, from v = 0 and with
its weights a = alpha0 and tau_i = alpha_i / (a + alpha_i),

    L_d = a log sum_n exp((z + v) / a)      u = tau1 (a log p0 - L) + (1 - tau1) scale top, less its maximum
    R_n = a log sum_d exp((z + u) / a)      v = tau2 (a log q0 - R)

and the output is top + sum_n x A, A = exp((z + v - L) / a), with L once more and a of the last module. The
plan is E exp((R + v) / a) of mass 1, where E = exp((z + u - R) / a) is the softmax of a row. A row is complete
when it is read, so one pass makes R and v of module k, and from the same registers the sums L of module k + 1:
K + 1 passes in all. L is kept as the maximum of a column and the sum of exponentials relative to it: for small
a an exponential of L would have lost its digits to rounding.

In the backward pass, g stands for a derivative by Z. With dL, dR, du, dv those by the sums and potentials,

    output   g = dy A (x - mean) / a, and dy A by X itself            dv = sum_d g, du = sum_n g = 0
    plan     g = P (dP - sum P dP) / a                                dv = sum_d g, du = sum_n g
    rows     dR = -tau2 dv, g = dR E                                  du += sum_n g
    columns  dL = -tau1 du, g = dL exp((z + v - L) / a)               dv = sum_d g of the module before

so the columns of module k give dv of a row, which is all that the rows of module k - 1 need: one pass makes
both. The tops are no variables: what they add cancels. A last pass forms dX = scale times the sum of all g
from the adjoints du and dv, and the derivative by the scale: sum_n x g + top sum_n g, where sum_n g is the
sum of (1 - tau1) du over the modules. By a, at fixed tau, a sum such as L has the derivative
-sum g (z + v - L) / a, and u has tau1 log p0.

A program has one chunk of the rows of one set. A small launch after each pass merges the sums of the chunks in
their order, without atomic additions, so a set has the same bits each time, alone and in any batch.
"""
