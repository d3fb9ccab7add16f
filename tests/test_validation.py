"""Bad input gives an error that names the argument, what is accepted and what came; nothing is corrupted."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, ones, tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import uotpool
from tests import tolerances as tol
from tests.cases import problem
from tests.spelling import CLASSIC, duality_gap, objective, plan_stats, uot_plan, uot_pool
from uotpool.backends.cpu.backend import CPU
from uotpool.integrations.pyg import UOTAggregation
from uotpool.solvers import SOLVERS
from uotpool.zoo import build

INF, NAN = float("inf"), float("nan")

# Dense, two sets of three samples with four features; the same as rows of one tensor.
X = problem(2, 3, 4).X
ROWS = X.reshape(6, 4)
INDEX = tensor([0, 0, 0, 1, 1, 1])
ADDITIVE = tensor([[0.0, 0.0, -INF], [0.0, 0.0, 0.0]])

WEIGHTS: dict[str, Any] = {"alpha0": 1.0, "alpha1": 1.0, "alpha2": 1.0}


def plan(X=X, **how):
    return uot_plan(X, **WEIGHTS | how)


def pool(X=X, **how):
    return uot_pool(X, **WEIGHTS | how)


def gap(X=X, P=X, **how):
    return duality_gap(X, P, **WEIGHTS | how)


def value(X=X, P=X, **how):
    return objective(X, P, **WEIGHTS | how)


def stats(P=X, **how):
    return plan_stats(P, **how)


def layer(dim=4, **how):
    return uotpool.make_layer(dim, **CLASSIC, **how)


def mixed(dim=4, **how):
    return uotpool.MixedMeanMax(dim, **how)


def aggregation(dim=4, **how):
    return UOTAggregation(dim, **how)


def groups(model=None, **options):
    return uotpool.param_groups(layer() if model is None else model, 0.1, **options)


def groups_of(weight_decay):
    return uotpool.param_groups(layer(), weight_decay)


def switch(enabled):
    return uotpool.check(enabled)


def resolve(*args):
    return uotpool.resolve_impl(*args)


class Returns(nn.Module):
    """A prior that applies a given function to its input."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


V, T = ValueError, TypeError
Bad = tuple[str, Callable[[], Any], type[Exception], str, str, str]

# Name of the case, call, error, and of its message "{argument}: {what is accepted}, got {what came}" the first
# part in full and a piece of the others. These hold with the checks on values on or off.
ALWAYS: list[Bad] = [
    # X
    ("X-rank-1", lambda: pool(X[0, 0]), V, "X", "(B, N, D), or (M, D) with index", "shape (4,)"),
    ("X-rank-4", lambda: plan(X[None]), V, "X", "(B, N, D), or (M, D)", "shape (1, 2, 3, 4)"),
    ("X-integer", lambda: pool(X.long()), T, "X", "a floating tensor", "an int64 tensor"),
    ("X-complex", lambda: plan(X + 0j), T, "X", "a floating tensor", "a complex128 tensor"),
    ("X-list", lambda: pool([[1.0, 2.0]]), T, "X", "a floating tensor", "[[1.0, 2.0]] (list)"),
    ("X-None", lambda: plan(None), T, "X", "a floating tensor", "None"),
    ("X-no-features", lambda: pool(X[..., :0]), V, "X", "at least one feature", "shape (2, 3, 0)"),
    ("X-sparse", lambda: pool(X.to_sparse()), T, "X", "not sparse", "a sparse_coo float64"),
    ("X-float8", lambda: pool(X.to(torch.float8_e5m2)), T, "X", "16 bits or more", "float8_e5m2"),
    ("gap-X-list", lambda: gap([1.0]), T, "X", "a floating tensor", "[1.0] (list)"),
    ("gap-X-integer", lambda: gap(X.long()), T, "X", "a floating tensor", "an int64 tensor"),
    ("stats-P-rank", lambda: stats(X[0, 0]), V, "P", "(B, N, D), or (M, D)", "shape (4,)"),
    ("stats-P-list", lambda: stats([1.0]), T, "P", "a floating tensor", "[1.0] (list)"),
    ("stats-P-integer", lambda: stats(X.long()), T, "P", "a floating tensor", "an int64 tensor"),
    # mask
    ("mask-shape", lambda: pool(mask=ones(2, 4)), V, "mask", "shape (2, 3)", "shape (2, 4)"),
    ("mask-rank", lambda: stats(mask=ones(3)), V, "mask", "shape (2, 3)", "shape (3,)"),
    ("mask-ragged", lambda: pool(ROWS, mask=ones(2, 3)), V, "mask", "(6,)", "shape (2, 3)"),
    ("mask-complex", lambda: pool(mask=ADDITIVE + 0j), T, "mask", "a bool or 0/1", "a complex64"),
    ("mask-list", lambda: pool(mask=[[1] * 3] * 2), T, "mask", "a bool or 0/1 tensor", "[[1, 1, 1]"),
    ("mask-additive", lambda: pool(mask=ADDITIVE), V, "mask", "1 where a sample is", "value -inf"),
    ("mask-twos", lambda: plan(mask=torch.full((2, 3), 2)), V, "mask", "0/1", "the value 2"),
    ("mask-NaN", lambda: plan(mask=ADDITIVE * 0), V, "mask", "0/1", "the value nan"),
    ("mask-device", lambda: pool(mask=ones(2, 3, device="meta")), V, "mask", "the device of X (cpu)", "meta"),
    # weights
    ("weight-negative", lambda: pool(alpha1=-1.0), V, "alpha1", "finite number >= 0", "-1.0"),
    ("weight-NaN", lambda: plan(alpha2=NAN), V, "alpha2", "finite number >= 0", "nan"),
    ("weight-inf", lambda: pool(alpha1=INF), V, "alpha1", "finite number >= 0", "inf"),
    ("weight-bool", lambda: pool(alpha0=True), T, "alpha0", "a finite number > 0", "True (bool)"),
    ("weight-string", lambda: pool(alpha0="1"), T, "alpha0", "a finite number > 0", "'1' (str)"),
    ("weight-None", lambda: plan(alpha2=None), T, "alpha2", "a finite number >= 0", "None"),
    ("weight-huge", lambda: plan(alpha2=10**400), V, "alpha2", "range of torch.float64", "1000"),
    ("alpha0-0", lambda: pool(alpha0=0.0), V, "alpha0", "a finite number > 0", "0.0 (float)"),
    ("rho-0", lambda: pool(solver="badmm-e", rho=0), V, "rho", "a finite number > 0", "0 (int)"),
    ("gap-alpha0-0", lambda: gap(alpha0=0.0), V, "alpha0", "a finite number > 0", "0.0"),
    ("alpha0-0-in-float32", lambda: pool(X.float(), alpha0=1e-50), V, "alpha0", "float32", "1e-50"),
    ("alpha1-inf-in-float32", lambda: pool(X.float(), alpha1=[1e50]), V, "alpha1", "float32", "1e+50"),
    ("tensor-float32", lambda: pool(X.float(), alpha1=X.new_tensor([1e50])), V, "alpha1", "float32", "1e+50"),
    ("tensor-negative", lambda: pool(alpha1=tensor([1.0, -2.0])), V, "alpha1", "values >= 0", "[1.0, -2.0]"),
    ("tensor-zero", lambda: plan(alpha0=tensor([1.0, 0.0])), V, "alpha0", "finite values > 0", "[1.0, 0.0]"),
    ("tensor-NaN", lambda: pool(alpha2=tensor([NAN, 1.0])), V, "alpha2", "finite values >= 0", "[nan, 1.0]"),
    ("tensor-rank-2", lambda: pool(alpha0=ones(1, 4)), V, "alpha0", "1-d", "(1, 4)"),
    ("tensor-integer", lambda: pool(alpha0=ones(2).long()), T, "alpha0", "1-d floating", "int64"),
    ("tensor-meta", lambda: pool(alpha0=ones(2, device="meta")), V, "alpha0", "1-d", "on meta"),
    ("weight-list-string", lambda: pool(alpha0=[1.0, "a"]), T, "alpha0", "number > 0", "'a' (str)"),
    ("weight-list-nested", lambda: pool(alpha0=[[1.0]]), T, "alpha0", "number > 0", "[1.0] (list)"),
    ("weight-lengths", lambda: pool(alpha0=[1, 1], alpha1=[1] * 3), V, "alpha1", "2 values", "'alpha1': 3"),
    ("weight-length-K", lambda: pool(alpha0=[1.0, 2.0], K=3), V, "alpha0", "3 values", "2 values (K=3)"),
    ("weight-converged", lambda: pool(alpha0=[1.0] * 2, K="converged"), V, "alpha0", "one value", "2 values"),
    (
        "weight-learned",
        lambda: layer(K=1, alpha0=ones(1, requires_grad=True)),
        V,
        "alpha0",
        "None to learn it",
        "requires grad",
    ),
    (
        "X-list",
        lambda: layer()([X[0], X[0]]),
        T,
        "X",
        "a floating tensor",
        "a list of 2 tensors: sets of several",
    ),
    (
        "index-names",
        lambda: pool(ROWS, index=tensor([0, 1, 2, 3, 4, 10**10])),
        V,
        "index",
        "numbers of sets",
        "10000000000",
    ),
    (
        "dim-size-tensor",
        lambda: pool(ROWS, index=INDEX, dim_size=tensor(3)),
        T,
        "dim_size",
        "an integer",
        "int(dim_size)",
    ),
    ("decay", lambda: groups_of("a"), T, "weight_decay", "a number >= 0", "'a' (str)"),
    ("decay-negative", lambda: groups_of(-1), V, "weight_decay", "a number >= 0", "-1 (int)"),
    ("gap-weight-length", lambda: gap(alpha2=[1.0, 2.0]), V, "alpha2", "one value", "2 values"),
    ("rho-missing", lambda: pool(solver="badmm-e"), V, "rho", "solver='badmm-e'", "None"),
    ("rho-missing-K", lambda: plan(solver="badmm-q", K=3), V, "rho", "number > 0 or 3 values", "None"),
    ("rho-sinkhorn", lambda: pool(rho=1.0), V, "rho", "None (solver='sinkhorn'", "1.0 (float)"),
    ("rho-converged", lambda: pool(solver="badmm-q", rho=1.0, K="converged"), V, "rho", "None", "1.0"),
    # ptr, index, dim_size
    ("ptr-unsorted", lambda: pool(ROWS, ptr=tensor([0, 4, 3, 6])), V, "ptr", "never fall", "[0, 4, 3, 6]"),
    ("ptr-start", lambda: pool(ROWS, ptr=tensor([1, 6])), V, "ptr", "start at 0", "[1, 6]"),
    ("ptr-end", lambda: plan(ROWS, ptr=tensor([0, 5])), V, "ptr", "end at 6", "[0, 5]"),
    ("ptr-empty", lambda: pool(ROWS, ptr=INDEX[:0]), V, "ptr", "at least one offset", "shape (0,)"),
    ("ptr-float", lambda: pool(ROWS, ptr=tensor([0.0, 6.0])), T, "ptr", "int64", "a float32"),
    ("ptr-list", lambda: pool(ROWS, ptr=[0, 6]), T, "ptr", "a 1-d tensor of int64", "[0, 6] (list)"),
    ("ptr-rank", lambda: pool(ROWS, ptr=tensor([[0, 6]])), V, "ptr", "1-d", "shape (1, 2)"),
    ("ptr-device", lambda: pool(ROWS, ptr=INDEX.to("meta")), V, "ptr", "device of X (cpu)", "meta"),
    ("ptr-dense", lambda: pool(ptr=tensor([0, 2])), V, "ptr", "None with a dense X", "int64"),
    ("ptr-long", lambda: pool(ROWS, ptr=torch.arange(20)), V, "ptr", "end at 6", "18, 19]"),
    ("index-too-large", lambda: pool(ROWS, index=INDEX * 2, dim_size=2), V, "index", ">= 0 and < 2", "0..2"),
    ("index-negative", lambda: pool(ROWS, index=INDEX - 1), V, "index", ">= 0", "-1..0"),
    ("index-all-negative", lambda: pool(ROWS, index=-INDEX - 1), V, "index", "expected values >= 0", "-2..-1"),
    ("index-length", lambda: pool(ROWS, index=INDEX[:5]), V, "index", "6 rows of X", "shape (5,)"),
    ("index-float", lambda: pool(ROWS, index=INDEX.float()), T, "index", "int64", "a float32"),
    ("index-list", lambda: pool(ROWS, index=[0] * 6), T, "index", "1-d tensor", "[0, 0, 0, 0, 0, 0]"),
    ("index-device", lambda: pool(ROWS, index=INDEX.to("meta")), V, "index", "device of X", "meta"),
    ("index-dense", lambda: plan(index=INDEX), V, "index", "None with a dense X", "shape (6,)"),
    ("index-and-ptr", lambda: pool(ROWS, index=INDEX, ptr=INDEX), V, "index, ptr", "one of the two", "both"),
    ("stats-index-length", lambda: stats(ROWS, index=INDEX[:5]), V, "index", "6 rows of P", "(5,)"),
    ("gap-index", lambda: gap(ROWS, ROWS, index=-INDEX), V, "index", "values >= 0", "-1..0"),
    ("dim_size-too-small", lambda: pool(ROWS, index=INDEX, dim_size=1), V, "index", "< 1 (dim_size", "0..1"),
    ("dim_size-0", lambda: pool(ROWS, index=INDEX, dim_size=0), V, "index", "< 0 (dim_size", "0..1"),
    ("dim_size-negative", lambda: pool(ROWS, index=INDEX, dim_size=-1), V, "dim_size", ">= 0", "-1"),
    ("dim_size-float", lambda: pool(dim_size=2.0), T, "dim_size", "an integer >= 0", "2.0 (float)"),
    ("dim_size-bool", lambda: pool(ROWS, dim_size=True), T, "dim_size", "an integer", "True (bool)"),
    ("dim_size-ptr", lambda: pool(ROWS, ptr=tensor([0, 6]), dim_size=3), V, "dim_size", "1, the number", "3"),
    ("dim_size-dense", lambda: pool(dim_size=3), V, "dim_size", "the number of sets of X, 2", "3"),
    ("dim_size-one-set", lambda: pool(ROWS, dim_size=2), V, "dim_size", "1 (X of shape (N, D)", "2"),
    # scale
    ("scale-NaN", lambda: pool(scale=NAN), V, "scale", "a finite number, or a floating tensor", "nan"),
    ("scale-inf", lambda: plan(scale=-INF), V, "scale", "a finite number", "-inf"),
    ("scale-bool", lambda: gap(scale=True), T, "scale", "a finite number", "True (bool)"),
    ("scale-list", lambda: pool(scale=[1.0] * 4), T, "scale", "tensor of shape (), (1,) or (4,)", "(list)"),
    ("scale-huge", lambda: pool(X.float(), scale=-1e50), V, "scale", "range of torch.float32", "-1e+50"),
    ("scale-shape", lambda: value(scale=ones(3)), V, "scale", "(), (1,) or (4,)", "shape (3,)"),
    ("scale-per-set", lambda: pool(scale=ones(2, 4)), V, "scale", "(), (1,) or (4,)", "shape (2, 4)"),
    ("scale-integer", lambda: pool(scale=ones(4).long()), T, "scale", "a floating tensor", "int64"),
    ("scale-values", lambda: pool(scale=tensor([1.0, -INF, 0.0, NAN])), V, "scale", "finite values", "-inf"),
    ("scale-float32", lambda: pool(X.float(), scale=X.new_tensor(1e50)), V, "scale", "float32", "1e+50"),
    ("scale-device", lambda: pool(scale=ones(4, device="meta")), V, "scale", "device of X (cpu)", "meta"),
    # names
    ("solver", lambda: pool(solver="sinkhron"), V, "solver", "'sinkhorn', 'badmm-e', 'badmm-q'", "'sinkhron'"),
    ("solver-tensor", lambda: pool(solver=X), V, "solver", "one of 'sinkhorn'", "a float64 tensor"),
    ("formulation", lambda: plan(formulation="published"), V, "formulation", "'exact', 'paper'", "'published'"),
    ("readout", lambda: pool(readout="mean"), V, "readout", "'conditional', 'sum', 'authors'", "'mean'"),
    ("impl", lambda: pool(impl="fast"), V, "impl", "'auto', 'cpu', 'triton', 'reference'", "'fast'"),
    ("regularizer", lambda: gap(regularizer="l2"), V, "regularizer", "'entropic', 'quadratic'", "'l2'"),
    ("readout-exact", lambda: pool(readout="authors"), V, "readout", 'formulation="paper"', "'exact'"),
    ("resolve_impl-X", lambda: resolve(3, "sinkhorn"), T, "X", "a tensor", "3 (int)"),
    ("resolve_impl-solver", lambda: resolve(X, "badmm"), V, "solver", "'badmm-e'", "'badmm'"),
    ("resolve_impl-impl", lambda: resolve(X, "sinkhorn", None), V, "impl", "'auto'", "None"),
    ("check-int", lambda: switch(1), T, "enabled", "a bool", "1 (int)"),
    # K, tol, max_iter
    ("K-negative", lambda: pool(K=-1), V, "K", 'an integer >= 0 or "converged"', "-1 (int)"),
    ("K-float", lambda: pool(K=4.0), T, "K", 'an integer >= 0 or "converged"', "4.0 (float)"),
    ("K-bool", lambda: pool(K=True), T, "K", 'an integer >= 0 or "converged"', "True (bool)"),
    ("K-typo", lambda: plan(K="converge"), T, "K", 'or "converged"', "'converge' (str)"),
    ("K-before-rho", lambda: pool(K=-1, solver="badmm-e"), V, "K", "an integer >= 0", "-1"),
    ("K-array", lambda: pool(K=ones(2).numpy()), T, "K", "an integer >= 0", "a NumPy array"),
    ("K-paper", lambda: pool(K="converged", formulation="paper"), V, "K", 'formulation="exact"', "'paper'"),
    ("tol-K", lambda: pool(tol=1e-3), V, "tol", 'None unless K="converged"', "0.001"),
    ("max_iter-K", lambda: plan(max_iter=3), V, "max_iter", 'None unless K="converged"', "3 (int)"),
    ("tol-0", lambda: pool(K="converged", tol=0.0), V, "tol", "a finite number > 0", "0.0"),
    ("tol-negative", lambda: pool(K="converged", tol=-1), V, "tol", "a finite number > 0", "-1"),
    ("max_iter-0", lambda: pool(K="converged", max_iter=0), V, "max_iter", "an integer >= 1", "0"),
    ("max_iter-float", lambda: pool(K="converged", max_iter=9.0), T, "max_iter", "an integer", "9.0"),
    # p0, q0, P
    ("p0-shape", lambda: pool(p0=ones(3)), V, "p0", "shape (4,) or (2, 4)", "shape (3,)"),
    ("p0-integer", lambda: pool(p0=ones(4).long()), T, "p0", "a floating tensor", "an int64"),
    ("p0-list", lambda: pool(p0=[0.25] * 4), T, "p0", "a floating tensor", "[0.25, 0.25, 0.25, 0.25]"),
    ("p0-device", lambda: pool(p0=ones(4, device="meta")), V, "p0", "device of X", "meta"),
    ("q0-shape", lambda: pool(q0=ones(2, 4)), V, "q0", "shape (2, 3)", "shape (2, 4)"),
    ("q0-integer", lambda: stats(q0=ones(2, 3).long()), T, "q0", "a floating tensor", "int64"),
    ("q0-string", lambda: pool(q0="uniform"), T, "q0", "a floating tensor", "'uniform' (str)"),
    ("q0-device", lambda: gap(q0=ones(2, 3, device="meta")), V, "q0", "device of X", "meta"),
    ("P-shape", lambda: gap(P=X[:1]), V, "P", "the shape of X, (2, 3, 4)", "shape (1, 3, 4)"),
    ("P-list", lambda: gap(P=[1.0]), T, "P", "a floating tensor of the shape of X", "[1.0]"),
    ("P-integer", lambda: gap(P=X.long()), T, "P", "a floating tensor", "an int64 tensor"),
    ("P-device", lambda: gap(P=X.to("meta")), V, "P", "the device of X (cpu)", "meta"),
    # layers
    ("dim-0", lambda: layer(0), V, "dim", "an integer >= 1", "0 (int)"),
    ("dim-float", lambda: layer(4.0), T, "dim", "an integer >= 1", "4.0 (float)"),
    ("layer-features", lambda: layer(3)(X), V, "X", "3 features", "shape (2, 3, 4)"),
    ("layer-plan-features", lambda: layer(5).plan(X), V, "X", "(dim=5)", "shape (2, 3, 4)"),
    ("layer-X-image", lambda: layer()(X[None]), V, "X", "(B, N, D)", "(B, C, H, W) there is AdaptiveUOTPool2d"),
    ("layer-X-volume", lambda: layer()(X[None, None]), V, "X", "(B, N, D)", "there is AdaptiveUOTPool3d"),
    ("layer-X-numpy", lambda: layer()(X.numpy()), T, "X", "a floating tensor", "torch.from_numpy(X) makes"),
    ("layer-mask-numpy", lambda: layer()(X, mask=ADDITIVE.numpy()), T, "mask", "tensor", "from_numpy(mask)"),
    ("zoo-X-image", lambda: build("mean", 4)(X[None]), V, "X", "(B, N, D)", "there is AdaptiveUOTPool2d"),
    ("layer-X-list", lambda: layer()([1.0]), T, "X", "a floating tensor", "[1.0] (list)"),
    ("layer-mask", lambda: layer()(X, mask=ADDITIVE), V, "mask", "0/1 tensor", "the value -inf"),
    ("layer-ptr", lambda: layer()(ROWS, ptr=INDEX), V, "ptr", "end at 6", "[0, 0, 0, 1, 1, 1]"),
    ("layer-scale", lambda: layer(scale="set"), V, "scale", "'feature' or None", "'set'"),
    ("layer-K-typo", lambda: layer(K="converge"), T, "K", '"converged"', "'converge' (str)"),
    ("layer-solver", lambda: layer(solver=None), V, "solver", "one of 'sinkhorn'", "None"),
    ("layer-readout", lambda: layer(readout="authors"), V, "readout", 'formulation="paper"', "'exact'"),
    ("layer-tol", lambda: layer(tol=1e-3), V, "tol", 'None unless K="converged"', "0.001"),
    ("layer-weight", lambda: layer(alpha0=-1), V, "alpha0", "a finite number > 0", "-1 (int)"),
    ("layer-weight-length", lambda: layer(alpha1=[1.0] * 3), V, "alpha1", "4 values", "3 values (K=4)"),
    ("layer-weight-tiny", lambda: layer(alpha0=1e-50), V, "alpha0", "range of torch.float32", "1e-50"),
    ("layer-rho", lambda: layer(rho=1.0), V, "rho", "None: no step size", "1.0"),
    ("layer-shared", lambda: layer(shared="no"), T, "shared", "a bool", "'no' (str)"),
    ("layer-dtype", lambda: layer(dtype=torch.complex64), T, "dtype", "a floating dtype", "torch.complex64"),
    ("layer-p0-name", lambda: layer(p0="lerned"), V, "p0", '"uniform", "learned" or a module', "'lerned'"),
    ("layer-q0-tensor", lambda: layer(q0=X[..., 0]), V, "q0", "uot_pool(X, ..., q0=...)", "a float64 tensor"),
    ("layer-p0-tensor", lambda: layer(p0=X[0, 0]), V, "p0", "uot_pool(X, ..., p0=...)", "a float64 tensor"),
    ("layer-p0-dim", lambda: layer(p0=uotpool.FeaturePrior(3)), V, "p0", "4 features (dim=4)", "one for 3"),
    ("layer-q0-dim", lambda: layer(q0=uotpool.SamplePrior(5)), V, "q0", "4 features (dim=4)", "one for 5"),
    ("layer-p0-shape", lambda: layer(p0=Returns(lambda s: s[:, :3]))(X), V, "p0", "(2, 4)", "(2, 3)"),
    ("layer-q0-shape", lambda: layer(q0=Returns(lambda x: x))(X), V, "q0", "(2, 3, 1)", "(2, 3, 4)"),
    ("layer-q0-integer", lambda: layer(q0=Returns(lambda x: x[..., 0].int()))(X), T, "q0", "floating", "int32"),
    ("layer-p0-None", lambda: layer(p0=Returns(lambda s: None))(X), T, "p0", "floating logits", "None"),
    ("init-fixed", lambda: layer(alpha0=1, init={"alpha0": 1}), V, "init", "['alpha1', 'alpha2']", "'alpha0'"),
    ("init-unknown", lambda: layer(init={"alpha3": 1}), V, "init", "'alpha0', 'alpha1', 'alpha2'", "'alpha3'"),
    ("init-rho-sinkhorn", lambda: layer(init={"rho": 1.0}), V, "init", "the learned weights", "'rho'"),
    ("init-0", lambda: layer(init={"alpha1": 0.0}), V, "init['alpha1']", "a finite number > 0", "0.0"),
    ("init-negative", lambda: layer(init={"alpha2": [-1] * 4}), V, "init['alpha2']", "number > 0", "-1"),
    ("init-below-floor", lambda: layer(init={"alpha0": 1e-9}), V, "init['alpha0']", ">= 1e-06", "1e-09"),
    ("init-length", lambda: layer(init={"alpha0": [1.0, 2.0]}), V, "init['alpha0']", "4 numbers", "[1.0, 2.0]"),
    ("init-shared", lambda: layer(shared=True, init={"alpha0": [1] * 4}), V, "init['alpha0']", "one", "[1, 1"),
    ("init-rho-converged", lambda: layer(K="converged", init={"rho": [1, 2]}), V, "init", "learned", "'rho'"),
    ("init-length-1", lambda: layer(K=1, init={"alpha0": [1, 2]}), V, "init['alpha0']", "one number", "[1, 2]"),
    ("init-string", lambda: layer(init={"alpha0": "big"}), T, "init['alpha0']", "number > 0", "'big' (str)"),
    ("init-bool", lambda: layer(init={"alpha0": True}), T, "init['alpha0']", "number > 0", "True (bool)"),
    ("init-rank", lambda: layer(init={"alpha0": ones(1, 4)}), V, "init['alpha0']", "1-d", "(1, 4)"),
    ("init-list", lambda: layer(init=[1.0]), T, "init", "a mapping", "[1.0] (list)"),
    ("groups-params", lambda: groups(params=[]), T, "params", "returned groups", "'params'"),
    ("groups-generator", lambda: groups(layer().parameters()), T, "module", "the model itself", "generator"),
    ("attention-hidden", lambda: uotpool.UOTPooling.attention(4, 0), V, "hidden", "an integer >= 1", "0"),
    ("FeaturePrior-dim", lambda: uotpool.FeaturePrior(0), V, "dim", "an integer >= 1", "0 (int)"),
    ("SamplePrior-dim", lambda: uotpool.SamplePrior(-1), V, "dim", "an integer >= 1", "-1 (int)"),
    ("max-temperature", lambda: uotpool.UOTPooling.max(4, 0.0), V, "temperature", "number > 0", "0.0"),
    ("mixed-dim", lambda: mixed(0), V, "dim", "an integer >= 1", "0 (int)"),
    ("mixed-temperature", lambda: mixed(temperature=-1.0), V, "temperature", "number > 0", "-1.0"),
    ("mixed-gated", lambda: mixed(gated=1), T, "gated", "a bool", "1 (int)"),
    ("mixed-features", lambda: mixed(3)(X), V, "X", "3 features", "shape (2, 3, 4)"),
    ("mixed-mask", lambda: mixed()(X, mask=ones(3)), V, "mask", "shape (2, 3)", "shape (3,)"),
    ("aggregation-dim-0", lambda: aggregation(0), V, "dim", "an integer >= 1", "0 (int)"),
    ("aggregation-kwargs", lambda: aggregation(solver="x"), V, "solver", "one of 'sinkhorn'", "'x'"),
    ("aggregation-rank", lambda: aggregation()(ROWS[:, 0], dim=0), V, "x", "(nodes, features)", "shape (6,)"),
    (
        "aggregation-dim",
        lambda: aggregation()(ROWS, INDEX, dim=1),
        V,
        "dim",
        "before that of the features",
        "1 (int)",
    ),
    ("aggregation-features", lambda: aggregation(3)(ROWS), V, "X", "3 features", "shape (6, 4)"),
    ("aggregation-index", lambda: aggregation()(ROWS, INDEX[:5]), V, "index", "6 rows", "shape (5,)"),
    ("aggregation-dim_size", lambda: aggregation()(ROWS, INDEX, dim_size=1), V, "index", "< 1", "0..1"),
    ("aggregation-ptr", lambda: aggregation()(ROWS, ptr=tensor([0, 5])), V, "ptr", "end at 6", "[0, 5]"),
]


def spoilt(value, where=(1, 2, 0)):
    Y = X.clone()
    Y[where] = value
    return Y


# Only under `check(True)`; without it, the same calls return.
CHECKED: list[Bad] = [
    ("X-NaN", lambda: pool(spoilt(NAN)), V, "X", "finite values", "1 rows with NaN or infinity"),
    ("X-inf", lambda: plan(spoilt(INF)), V, "X", "finite values", "1 rows with NaN or infinity"),
    ("X-ragged", lambda: pool(spoilt(-INF).reshape(6, 4), index=INDEX), V, "X", "finite", "1 rows"),
    ("X-layer", lambda: layer(q0="learned")(spoilt(NAN)), V, "X", "finite values", "1 rows"),
    ("X-mixed", lambda: mixed()(spoilt(NAN)), V, "X", "finite values", "1 rows"),
    ("X-aggregation", lambda: aggregation()(spoilt(NAN)[1]), V, "X", "finite values", "1 rows"),
    ("X-gap", lambda: gap(spoilt(NAN), X), V, "X", "finite values", "1 rows"),
    ("q0-sum", lambda: pool(q0=ones(2, 3)), V, "q0", "sum to 1 in each set", "a sum of 3"),
    ("q0-mask", lambda: pool(q0=ones(2, 3) / 3, mask=tensor([[1, 1, 0]] * 2)), V, "q0", "sum to 1", "0.666667"),
    ("q0-negative", lambda: pool(q0=tensor([[1.5, -0.5, 0.0]] * 2)), V, "q0", "probabilities >= 0", "-0.5"),
    ("q0-NaN", lambda: pool(q0=tensor([[0.5, NAN, 0.5]] * 2)), V, "q0", "probabilities >= 0", "nan"),
    ("p0-sum", lambda: pool(p0=ones(4)), V, "p0", "sum to 1 in each set", "a sum of 4"),
    ("p0-negative", lambda: plan(p0=tensor([0.5, 1.0, -0.5, 0.0])), V, "p0", "probabilities >= 0", "-0.5"),
    ("p0-zero", lambda: pool(p0=tensor([0.5, 0.5, 0.0, 0.0])), V, "p0", "positive", "0"),
    ("P-negative", lambda: gap(P=spoilt(-0.5)), V, "P", "finite entries >= 0", "-0.5"),
    ("P-inf", lambda: gap(P=spoilt(INF)), V, "P", "finite entries >= 0", "inf"),
    ("stats-P-negative", lambda: stats(spoilt(-0.5)), V, "P", "finite entries >= 0", "-0.5"),
    ("stats-P-NaN", lambda: stats(spoilt(NAN)), V, "P", "finite values", "1 rows with NaN"),
]


def assert_refused(bad: Bad) -> None:
    _, call, error, name, accepted, came = bad
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error  # not a subclass from somewhere in torch
    message = re.fullmatch(rf"{re.escape(name)}: (.+), got (.+)", str(caught.value))
    assert message, str(caught.value)
    assert accepted in message[1]
    assert came in message[2]
    assert len(message[0]) < 300
    assert (X._version, INDEX._version, ADDITIVE._version) == (0, 0, 0)


def table(cases: list[Bad]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("bad", [pytest.param(bad, id=bad[0]) for bad in cases])


@table(ALWAYS)
def test_refused_always(bad):
    with uotpool.check(False):
        assert_refused(bad)


@table(CHECKED)
def test_refused_under_check(bad):
    with uotpool.check(True):
        assert_refused(bad)
    with uotpool.check(False):
        bad[1]()


def test_missing_implementation_says_why(monkeypatch):
    monkeypatch.setattr(CPU, "unavailable", lambda: "no compiler found")
    for call in (
        lambda: resolve(X, "sinkhorn", "cpu"),
        lambda: pool(impl="cpu"),
        lambda: layer(impl="cpu")(X),
    ):
        with pytest.raises(ValueError, match=r"^impl: 'cpu' cannot be used: no compiler found; use .*'auto'"):
            call()
    assert uotpool.resolve_impl(X, "sinkhorn", "reference") == "reference"


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("preset", ["mean", "max", "attention"])
def test_presets_ask_for_nothing_that_was_not_given(preset, solver):
    """`rho` of a preset goes with Bregman ADMM steps only, so K="converged" is no error of the caller."""
    for K in (3, "converged"):
        model = getattr(uotpool.UOTPooling, preset)(4, solver=solver, K=K)
        assert (model.weights().rho is not None) == (solver != "sinkhorn" and K == 3)


# ---------------------------------------------------------------------------------------------------------
# masks


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("drop", [-INF, -1e4])
def test_additive_masks_are_refused_always(drop, dtype, checked):
    mask = torch.where(ADDITIVE < 0, drop, 0.0).to(dtype)
    P = torch.full_like(X, 1 / 12)
    calls = [
        lambda: plan(mask=mask),
        lambda: pool(mask=mask),
        lambda: pool(ROWS, index=INDEX, mask=mask.flatten()),
        lambda: gap(P=P, mask=mask),
        lambda: stats(P, mask=mask),
        lambda: layer()(X, mask=mask),
        lambda: mixed()(X, mask=mask),
    ]
    with uotpool.check(checked):
        for call in calls:
            with pytest.raises(ValueError, match=r"^mask: expected a bool or 0/1 tensor .*, got the value -"):
                call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.float16, torch.float64])
def test_masks_of_0_and_1_are_accepted(dtype):
    mask = tensor([[1, 1, 0], [1, 0, 1]])
    assert torch.equal(pool(mask=mask.to(dtype)), pool(mask=mask.bool()))


@torch.no_grad()
def test_a_mask_whose_values_cannot_be_checked_is_bool_or_whole():
    """An additive mask, 0 to keep, would be read as its opposite. A graph break lets eager check the values."""
    torch.compiler.reset()
    mask, network = tensor([[1, 1, 0], [1, 0, 1]]), layer()
    compiled = torch.compile(network, backend="aot_eager")
    for dtype in (torch.bool, torch.int64, torch.float32):
        close = torch.testing.assert_close
        close(compiled(X, mask=mask.to(dtype)), network(X, mask=mask.bool()))
        if dtype != torch.float32:
            torch.export.export(network, (X,), {"mask": mask.to(dtype)})
    with pytest.raises(RuntimeError, match="mask must hold 0 and 1 only"):
        compiled(X, mask=torch.zeros(2, 3).masked_fill(mask == 0, -torch.inf))
    with pytest.raises(ValueError, match=r"mask: expected bool or integers under .*torch\.float32"):
        torch.export.export(network, (X,), {"mask": mask.float()})
    torch.compiler.reset()


@pytest.mark.parametrize("padding", [NAN, INF, -INF])
def test_padding_is_not_checked(padding):
    mask = tensor([[True, True, False], [True, True, True]])
    Y = torch.where(mask[..., None], X, padding)
    q0 = tensor([[0.4, 0.6, padding], [0.2, 0.3, 0.5]], dtype=X.dtype)
    with uotpool.check(True):
        P = plan(Y, mask=mask, q0=q0)
        alone = plan(X[:1, :2], q0=q0[:1, :2])
        assert (P[:1, :2] - alone).abs().max() <= tol.F64
        assert (pool(Y, mask=mask, q0=q0)[:1] - pool(X[:1, :2], q0=q0[:1, :2])).abs().max() <= tol.F64
        ragged = pool(Y.reshape(6, 4), index=INDEX, mask=mask.flatten(), q0=q0.flatten())
        assert (ragged - pool(Y, mask=mask, q0=q0)).abs().max() <= tol.F64
        P = torch.where(mask[..., None], P, padding)
        one = gap(X[:1, :2], alone, q0=q0[:1, :2])
        assert (gap(Y, P, mask=mask, q0=q0)[:1] - one).abs().max() <= tol.F64
        for many, few in zip(stats(P, mask=mask, q0=q0), stats(alone, q0=q0[:1, :2]), strict=True):
            assert (many[:1] - few).abs().max() <= tol.F64
        model = layer(p0="learned", q0="learned")
        assert (model(Y, mask=mask)[:1] - model(X[:1, :2])).abs().max() <= tol.F64


# ---------------------------------------------------------------------------------------------------------
# nothing is corrupted

LAYERS = {
    "learned": lambda: layer(p0="learned", q0="learned"),
    "badmm": lambda: layer(solver="badmm-q", q0="learned", alpha1=[1.0, 2.0, 3.0, 4.0]),
    "converged": lambda: layer(K="converged", p0="learned"),
    "paper": lambda: layer(formulation="paper", readout="authors"),
    "mixed": lambda: mixed(gated=True),
    "aggregation": lambda: aggregation(q0="learned"),
}
BAD_CALLS: dict[str, Callable[[Any], Any]] = {
    "features": lambda model: model(ROWS[:, :3], INDEX),
    "integer": lambda model: model(ROWS.long(), INDEX),
    "index": lambda model: model(ROWS, INDEX, dim_size=1),
    "ptr": lambda model: model(ROWS, ptr=tensor([0, 5])),
    "NaN": lambda model: model(ROWS * NAN, INDEX),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_failed_call_leaves_the_layer_as_it_was(make):
    model = make()
    before, state = model(ROWS, INDEX), copy.deepcopy(model.state_dict())
    assert state
    for name, call in BAD_CALLS.items():
        with pytest.raises((ValueError, TypeError)):
            call(model)
        assert list(model.state_dict()) == list(state), name
        for key, value in model.state_dict().items():
            assert torch.equal(value, state[key]), (name, key)
        assert all(p.grad is None for p in model.parameters())
        assert torch.equal(model(ROWS, INDEX), before), name


def test_a_failing_prior_leaves_the_layer_as_it_was():
    def prior(x):
        if broken:
            raise RuntimeError("broken prior")
        return x[..., :1]

    broken = False
    model = layer(p0="learned", q0=Returns(prior))
    before, state = model(X), copy.deepcopy(model.state_dict())
    broken = True
    with pytest.raises(RuntimeError, match="broken prior"):
        model(X)
    broken = False
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(model(X), before)


HOW: dict[str, dict[str, Any]] = {
    "sinkhorn": {},
    "badmm-e": {"solver": "badmm-e", "rho": 1.0},
    "badmm-q": {"solver": "badmm-q", "rho": 1.0},
    "sinkhorn-paper": {"formulation": "paper"},
    "badmm-e-paper": {"solver": "badmm-e", "rho": 1.0, "formulation": "paper"},
    "badmm-q-paper": {"solver": "badmm-q", "rho": 1.0, "formulation": "paper"},
    "authors": {"formulation": "paper", "readout": "authors"},
    "entropic-converged": {"K": "converged"},
    "quadratic-converged": {"K": "converged", "solver": "badmm-q"},
}


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
def test_a_non_finite_X_spoils_its_own_set_only(how, value, ragged):
    good = problem(3, 4, 5).X
    bad = good.clone()
    bad[1, 2, 0] = value
    kept = tensor([0, 2])
    results = []
    with uotpool.check(False), warnings.catch_warnings():
        warnings.simplefilter("ignore", uotpool.ConvergenceWarning)
        for Y in (good, bad):
            Y.requires_grad_()
            index = torch.arange(3).repeat_interleave(4) if ragged else None
            y = pool(Y.reshape(12, 5) if ragged else Y, index=index, **how)
            (gradient,) = torch.autograd.grad(y[kept].square().sum(), Y)
            results.append((y.detach(), gradient))
    (y, gradient), (y_bad, gradient_bad) = results
    assert not y_bad[1].isfinite().all()
    assert (y_bad - y)[kept].abs().max() <= tol.F64
    assert (gradient_bad - gradient)[kept].abs().max() <= tol.F64


def test_NaN_reaches_the_output_through_priors_too():
    """A NaN in a prior is no absent sample: it must not vanish."""
    good = problem(3, 4, 4).X
    bad = good.clone()
    bad[1, 2, 0] = NAN
    q0 = torch.full((3, 4), 0.25, dtype=good.dtype)
    q0[1, 2] = NAN
    model = layer(q0="learned")
    with uotpool.check(False):
        for y, y_bad in ((model(good), model(bad)), (pool(good), pool(good, q0=q0))):
            assert y_bad[1].isnan().all()
            assert (y_bad - y)[[0, 2]].abs().max() <= tol.F64


# ---------------------------------------------------------------------------------------------------------
# the switch


def checking() -> bool:
    """Whether values are checked, seen from outside."""
    try:
        pool(spoilt(NAN))
    except ValueError:
        return True
    return False


def test_check_plain_call_sets_the_switch():
    with uotpool.check(False):  # restores what the test session has
        assert not checking()
        uotpool.check(True)
        assert checking()
        uotpool.check(False)
        assert not checking()
        uotpool.check()
        assert checking()


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_check_restores_the_state_before(outer, inner):
    before = checking()
    with uotpool.check(outer):
        with uotpool.check(inner):
            assert checking() is inner
        assert checking() is outer
        with pytest.raises(KeyError), uotpool.check(inner):
            raise KeyError
        assert checking() is outer
        with pytest.raises(TypeError):
            switch("on" if inner else None)
        assert checking() is outer
    assert checking() is before


def test_failed_checks_leave_the_switch():
    with uotpool.check(True):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^X: expected finite values"):
                pool(spoilt(NAN))
        assert checking()
        assert pool().isfinite().all()


def test_check_passes_over_tensors_without_values():
    """Meta and fake tensors have shapes only: with the checks on they still go through."""
    how = {"p0": ones(4), "q0": ones(2, 3), "mask": ones(2, 3), "alpha0": ones(4)}
    with uotpool.check(True):
        meta = {name: value.to("meta") for name, value in how.items()}
        assert pool(X.to("meta"), **meta).shape == (2, 4)
        assert gap(X.to("meta"), X.to("meta")).shape == (2,)
        with FakeTensorMode() as mode:
            fake = {name: mode.from_tensor(value) for name, value in how.items()}
            assert pool(mode.from_tensor(X), **fake).shape == (2, 4)


MASKS = {"bool": tensor([[True, True, False], [True, True, True]]), "int": tensor([[1, 1, 0], [1, 1, 1]])}
IN_ORDER = {
    "UOTPooling": lambda: uotpool.make_layer(4, **CLASSIC),
    "plan": lambda: uotpool.make_layer(4, **CLASSIC).plan,
    "MixedMeanMax": lambda: uotpool.MixedMeanMax(4),
    "zoo uot": lambda: build("uotp-sinkhorn", 4),
    "zoo attention": lambda: build("attention", 4),
    "fit": lambda: build("otk", 4).fit,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize(("place", "argument"), [(0, "index"), (1, "ptr"), (2, "dim_size")])
def test_a_mask_that_is_not_named(name, mask, place, argument):
    """Attention layers and torchmil take the mask as their second argument."""
    with pytest.raises(
        ValueError, match=rf"^{argument}: expected .*a mask is passed by its name, mask=.*got an? "
    ):
        IN_ORDER[name]()(X, *[None] * place, MASKS[mask])


def test_a_mask_beside_offsets_is_named_too():
    """The message once complained of index and ptr together."""
    with pytest.raises(ValueError, match=r"^index: expected the set of each row.*mask="):
        uotpool.make_layer(4, **CLASSIC)(ROWS, ones(6, dtype=torch.bool), tensor([0, 3, 6]))


def test_an_aggregation_has_no_mask():
    with pytest.raises(ValueError, match=r"^index: expected the set of each node.*x\[mask\].*got a bool"):
        UOTAggregation(4)(ROWS, ones(6, dtype=torch.bool))
