# mypy: disable-error-code="arg-type"
"""Bad input gives an error that names the argument; nothing is corrupted.

For options of a layer see nn/test_coefficients.py.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, ones, tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import uotpool
from tests import tolerances as tol
from tests.cases import SOLVERS, problem
from tests.spelling import classic
from uotpool import (
    AdaptiveUOTPool2d,
    BregmanADMM,
    Learned,
    Newton,
    Problem,
    SamplePrior,
    Sinkhorn,
    UOTAssignment,
    UOTPool2d,
    UOTPooling,
    explain_impl,
    published,
    uot_pool,
)
from uotpool.backends.cpu.backend import CPU
from uotpool.integrations.pyg import UOTAggregation
from uotpool.zoo import build

INF, NAN = float("inf"), float("nan")

# Dense, two sets of three samples with four features; the same as rows of one tensor.
X = problem(2, 3, 4).X
ROWS = X.reshape(6, 4)
INDEX = tensor([0, 0, 0, 1, 1, 1])
OFFSETS = tensor([0, 4, 6])
STRIDED = torch._nested_view_from_buffer(
    ROWS.flatten(), tensor([[2, 4], [4, 4]]), tensor([[4, 1], [4, 1]]), tensor([0, 8])
)
ADDITIVE = tensor([[0.0, 0.0, -INF], [0.0, 0.0, 0.0]])

WEIGHTS: dict[str, Any] = {"alpha0": 1.0, "alpha1": 1.0, "alpha2": 1.0}


def posed(X=X, **how):
    return Problem(X, **WEIGHTS | how)


def plan(X=X, **how):
    return posed(X, **how).plan(Sinkhorn())


def pool(X=X, **how):
    return uot_pool(X, **WEIGHTS | how)


def gap(X=X, P=X, regularizer="entropic", **how):
    return posed(X, **how).gap(P, regularizer)


def stats(P=X, X=X, **how):
    return posed(X, **how).stats(P)


def layer(dim=4, **how):
    return classic(dim, **how)


def made(dim=4, solver="sinkhorn", **how):
    return UOTPooling(dim, solver, **how)


def ragged(**how):
    return pool(ROWS, **how)


def assignment(dim=4, **how):
    return UOTAssignment(dim, **how)


def scores(**how):
    return layer().scores(X, **how)


def windows(dim=3, kernel_size=2, **how):
    return UOTPool2d(dim, kernel_size, **how)


def windowed(x):
    return windows()(x)


def adaptive(dim=3, **how):
    return AdaptiveUOTPool2d(dim, **how)


def aggregation(dim=4, **how):
    return UOTAggregation(dim, **how)


def groups(model=None, weight_decay=0.1, **options):
    return uotpool.param_groups(layer() if model is None else model, weight_decay, **options)


class Returns(nn.Module):
    """A prior that applies a function to its input."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


Bad = tuple[str, Callable[[], Any]]  # the argument that the message begins with, and the call

# These hold with the checks on values on or off.
ALWAYS: list[Bad] = [
    ("X", lambda: pool(X[0, 0])),
    ("X", lambda: plan(X[None])),
    ("X", lambda: pool(X.long())),
    ("X", lambda: plan(X + 0j)),
    ("X", lambda: pool([[1.0, 2.0]])),
    ("X", lambda: plan(None)),
    ("X", lambda: pool({"X": X})),
    ("X", lambda: pool(X[..., :0])),
    ("X", lambda: pool(X.to_sparse())),
    ("X", lambda: pool(X.to(torch.float8_e5m2))),
    ("X", lambda: explain_impl(3)),
    ("P", lambda: stats([1.0])),
    ("P", lambda: stats(X.long())),
    ("P", lambda: stats(X[0, 0])),
    ("alpha0", lambda: pool(X.float(), alpha0=1e-50)),
    ("alpha1", lambda: pool(X.float(), alpha1=[1e50])),
    ("alpha1", lambda: pool(X.float(), alpha1=X.new_tensor([1e50]))),
    ("alpha0", lambda: pool(alpha0=[1.0] * 2, solver=Newton())),
    ("rho", lambda: pool(solver="badmm-e")),
    ("rho", lambda: pool(solver="badmm-e", rho=0)),
    ("rho", lambda: pool(solver=Newton("quadratic"), rho=1.0)),
    ("index", lambda: ragged(index=INDEX * 2, dim_size=2)),
    ("index", lambda: gap(ROWS, ROWS, index=-INDEX)),
    ("index", lambda: ragged(index=INDEX, dim_size=1)),
    ("index", lambda: ragged(index=INDEX, dim_size=0)),
    ("index, ptr", lambda: ragged(index=INDEX, ptr=INDEX)),
    ("dim_size", lambda: ragged(index=INDEX, dim_size=-1)),
    ("dim_size", lambda: ragged(index=INDEX, dim_size=tensor(3))),
    ("dim_size", lambda: ragged(ptr=tensor([0, 6]), dim_size=3)),
    ("scale", lambda: pool(X.float(), scale=-1e50)),
    ("scale", lambda: pool(X.float(), scale=X.new_tensor(1e50))),
    ("solver", lambda: explain_impl(X, "badmm")),
    ("impl", lambda: pool(impl="cpu", solver=published.Sinkhorn())),
    ("enabled", lambda: uotpool.check(1)),
    ("dim", lambda: layer(4.0)),
    ("X", lambda: layer(3)(X)),
    ("X", lambda: layer(5).plan(X)),
    ("X", lambda: layer()(X[None])),
    ("X", lambda: layer()(X.numpy())),
    ("X", lambda: layer()([X[0], X[0]])),
    ("X", lambda: build("mean", 4)(X[None])),
    ("mask", lambda: layer()(X, mask=ADDITIVE.numpy())),
    ("mask", lambda: layer()(X, mask=ADDITIVE)),
    ("ptr", lambda: layer()(ROWS, ptr=INDEX)),
    ("q0", lambda: layer()(X, q0=ones(2, 4))),
    ("q0", lambda: layer()(X, q0="learned")),
    ("p0", lambda: layer(p0=Returns(lambda s: s[:, :3]))(X)),
    ("p0", lambda: layer(p0=Returns(lambda s: None))(X)),
    ("q0", lambda: layer(q0=Returns(lambda x: x))(X)),
    ("q0", lambda: layer(q0=Returns(lambda x: x[..., 0].int()))(X)),
    ("module", lambda: groups(layer().parameters())),
    ("hidden", lambda: UOTPooling.attention(4, 0)),
    ("temperature", lambda: UOTPooling.max(4, 0.0)),
    ("dim", lambda: uotpool.FeaturePrior(0)),
    ("dim", lambda: uotpool.SamplePrior(-1)),
    ("dim", lambda: aggregation(0)),
    ("x", lambda: aggregation()(ROWS[:, 0], dim=0)),
    ("dim", lambda: aggregation()(ROWS, INDEX, dim=1)),
    ("x", lambda: aggregation(3)(ROWS)),
    ("index", lambda: aggregation()(ROWS, INDEX[:5])),
    ("index", lambda: aggregation()(ROWS, INDEX, dim_size=1)),
    ("ptr", lambda: aggregation()(ROWS, ptr=tensor([0, 5]))),
    ("alpha2", lambda: made(solver=Newton(), alpha2=Learned(per_step=True))),
    ("alpha2", lambda: made(solver=Newton(), alpha2=[1.0, 2.0])),
    ("rho", lambda: made(solver=Newton(), rho=Learned())),
    ("rho", lambda: made(solver="badmm-e", rho=0.0)),
    ("reduce", lambda: made(solver=published.Sinkhorn(output="code"), reduce="sum")),
    ("output", lambda: published.Sinkhorn(output="authors")),
    ("x", lambda: UOTPool2d(3, 5)(torch.zeros(1, 3, 4, 4))),
    ("x", lambda: AdaptiveUOTPool2d(3)(torch.zeros(1, 3, 0, 4))),
    ("kernel_size, stride", lambda: UOTPool2d(4, 2, stride=2**63)),
    ("config", lambda: AdaptiveUOTPool2d.from_config(5)),
    ("dustbin_share", lambda: assignment(dustbin=False, dustbin_share=0.3)),
    ("score", lambda: UOTAssignment(4, 3, score=nn.Linear(4, 7))(X.float())),
    ("value", lambda: UOTAssignment(4, 3, 2, value=nn.Linear(4, 7))(X.float())),
    ("token", lambda: UOTAssignment(4, token=2)(X)),
    ("token", lambda: UOTAssignment(4)(X, token=X[:, 0])),
    ("score", lambda: UOTAssignment(4, hidden=4).fit(ROWS)),
    ("X", lambda: UOTAssignment(4, clusters=7).fit(ROWS)),
    ("ptr", lambda: layer()(torch.nested.nested_tensor_from_jagged(ROWS, OFFSETS), ptr=OFFSETS)),
    ("mask", lambda: layer()(torch.nested.nested_tensor_from_jagged(ROWS, OFFSETS), mask=ones(6))),
    ("dim_size", lambda: layer()(torch.nested.nested_tensor_from_jagged(ROWS, OFFSETS), dim_size=7)),
    ("X", lambda: layer()(torch.nested.nested_tensor_from_jagged(ROWS, OFFSETS).int())),
    ("X", lambda: layer()(torch.nested.nested_tensor_from_jagged(ROWS, OFFSETS).transpose(1, 2))),
    ("X", lambda: layer()(torch.nested.narrow(X, 1, tensor([0, 1]), tensor([1, 2]), layout=torch.jagged))),
    ("X", lambda: layer()(STRIDED)),
    # Attention layers and torchmil take the mask as their second argument.
    ("index", lambda: layer()(X, ones(2, 3).bool())),
    ("index", lambda: layer()(X, ones(2, 3).long())),
    ("index", lambda: layer()(ROWS, ones(6, dtype=torch.bool), tensor([0, 3, 6]))),
    ("ptr", lambda: layer().plan(X, None, ones(2, 3).bool())),
    ("dim_size", lambda: build("attention", 4)(X, None, None, ones(2, 3).bool())),
    ("index", lambda: build("otk", 4).fit(X, ones(2, 3).bool())),
    ("index", lambda: aggregation()(ROWS, ones(6, dtype=torch.bool))),
]


# A call with one argument, and values of it that are refused.
VALUES: list[tuple[Callable[..., Any], str, list[Any]]] = [
    (gap, "P", [X[:1], X.to("meta")]),
    (pool, "mask", [ones(2, 4).bool(), ADDITIVE + 0j, [[1] * 3] * 2, ones(2, 3)]),
    (pool, "mask", [ones(2, 3, device="meta").bool()]),
    (stats, "mask", [ones(3).bool()]),
    (plan, "mask", [torch.full((2, 3), 2)]),
    (pool, "alpha1", [-1.0, INF, [], ones(0), tensor([1.0, -2.0]), [1.0] * 3, Learned()]),
    (plan, "alpha2", [NAN, None, 10**400]),
    (pool, "alpha0", [True, "1", 0.0, ones(1, 4), ones(2).long(), ones(2, device="meta"), [1.0, "a"], [[1.0]]]),
    (pool, "alpha0", [ones(2)]),
    (plan, "alpha0", [tensor([1.0, 0.0])]),
    (pool, "alpha2", [tensor([NAN, 1.0])]),
    (gap, "alpha2", [[1.0, 2.0]]),
    (pool, "rho", [1.0]),
    (pool, "ptr", [tensor([0, 2])]),
    (plan, "index", [INDEX]),
    (pool, "dim_size", [2.0, 3]),
    (pool, "scale", [NAN, [1.0] * 3, ones(3), ones(2, 4), ones(4).long(), tensor([1.0, -INF, 0.0, NAN])]),
    (pool, "scale", [ones(4, device="meta")]),
    (plan, "scale", [-INF]),
    (gap, "scale", [True]),
    (pool, "solver", ["sinkhron", X]),
    (pool, "reduce", ["max"]),
    (pool, "impl", ["fast", None]),
    (gap, "regularizer", ["l2"]),
    (pool, "p0", [ones(3), ones(4).long(), [0.25] * 4, ones(4, device="meta")]),
    (pool, "q0", [ones(2, 4), "uniform"]),
    (stats, "q0", [ones(2, 3).long()]),
    (gap, "q0", [ones(2, 3, device="meta")]),
    (layer, "p0", [uotpool.FeaturePrior(3)]),
    (groups, "weight_decay", ["a", -1]),
    (aggregation, "solver", ["x"]),
    (made, "alpha1", [[], [1.0, 2.0]]),
    (made, "alpha0", [0.0, torch.tensor(1.0)]),
    (made, "alpha2", [-1.0, 1e39, "log", True, Learned(transform="linear"), Learned(0.0), Learned(1e9)]),
    (made, "alpha2", [Learned([1.0, 2.0]), Learned([1.0, 2.0], per_step=True)]),
    (made, "scale", [[1.0, 2.0], float("nan"), Learned(per_step=True), Learned(transform="exp")]),
    (made, "scale", [Learned([1.0, 2.0])]),
    (made, "rho", [1.0]),
    (made, "reduce", ["max"]),
    (made, "solver", ["adam"]),
    (made, "impl", ["gpu"]),
    (made, "device", ["abc"]),
    (made, "dtype", [torch.int64]),
    (made, "p0", ["uniform"]),
    (made, "q0", [torch.ones(3), SamplePrior(3)]),
    (made, "dim", [0]),
    (BregmanADMM, "K", [2**63]),
    (Newton, "tol", [0.0]),
    (Newton, "max_iter", [0]),
    (Learned, "transform", ["log"]),
    (Learned, "per_step", [1]),
    (ragged, "mask", [ones(2, 3).bool()]),
    (ragged, "ptr", [tensor([0, 4, 3, 6]), tensor([1, 6]), tensor([0, 5]), INDEX[:0], tensor([0.0, 6.0])]),
    (ragged, "ptr", [[0, 6], tensor([[0, 6]]), INDEX.to("meta"), torch.arange(20)]),
    (ragged, "index", [INDEX - 1, -INDEX - 1, INDEX[:5], INDEX.float(), [0] * 6, INDEX.to("meta")]),
    (ragged, "index", [tensor([0, 1, 2, 3, 4, 10**10])]),
    (ragged, "dim_size", [True, 2]),
    (Sinkhorn, "K", [-1, 10**12, True]),
    (BregmanADMM, "regularizer", ["l2"]),
    (Learned, "init", ["x", INF]),
    (windows, "kernel_size", [0, (2, 2, 2), 2.0, "ab", True]),
    (windows, "stride", [0]),
    (windows, "padding", [-1, 2]),
    (windows, "ceil_mode", [1]),
    (windows, "dim", [0]),
    (windows, "solver", ["newton"]),
    (adaptive, "output_size", [0, (1,), "11"]),
    (windowed, "x", [torch.zeros(2, 4, 4, 4), torch.zeros(3, 4), torch.zeros(1, 3, 4, 4, dtype=torch.int64)]),
    (windowed, "x", [[1.0]]),
    (assignment, "clusters", [0]),
    (assignment, "dustbin_share", [1.0]),
    (assignment, "rho", [1.0]),
    (assignment, "dustbin", [1]),
    (assignment, "centred", [None]),
    (assignment, "hidden", [0]),
    (scores, "output", [3, ones(3), ones(2, 4).long(), lambda y: y[:1, 0], lambda y: y.detach().sum(-1)]),
    (scores, "output", [lambda y: 3.0]),
]
ALWAYS += [(name, partial(call, **{name: value})) for call, name, values in VALUES for value in values]


def spoilt(value, where=(1, 2, 0)):
    Y = X.clone()
    Y[where] = value
    return Y


# Only under `check(True)`; without it, the same calls return.
CHECKED: list[Bad] = [
    ("X", lambda: pool(spoilt(NAN))),
    ("X", lambda: plan(spoilt(INF))),
    ("X", lambda: pool(spoilt(-INF).reshape(6, 4), index=INDEX)),
    ("X", lambda: layer(q0="learned")(spoilt(NAN))),
    ("X", lambda: aggregation()(spoilt(NAN)[1])),
    ("X", lambda: gap(spoilt(NAN), X)),
    ("q0", lambda: pool(q0=ones(2, 3))),
    ("q0", lambda: pool(q0=ones(2, 3) / 3, mask=tensor([[1, 1, 0]] * 2))),
    ("q0", lambda: pool(q0=tensor([[1.5, -0.5, 0.0]] * 2))),
    ("q0", lambda: pool(q0=tensor([[0.5, NAN, 0.5]] * 2))),
    ("p0", lambda: pool(p0=ones(4))),
    ("p0", lambda: plan(p0=tensor([0.5, 1.0, -0.5, 0.0]))),
    ("p0", lambda: pool(p0=tensor([0.5, 0.5, 0.0, 0.0]))),
    ("P", lambda: gap(P=spoilt(-0.5))),
    ("P", lambda: gap(P=spoilt(INF))),
    ("P", lambda: stats(spoilt(-0.5))),
    ("P", lambda: stats(spoilt(NAN))),
]


def assert_refused(argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{argument}: ") as caught:
        call()
    assert caught.type in (ValueError, TypeError)  # not a subclass from somewhere in torch
    assert (X._version, INDEX._version, ADDITIVE._version) == (0, 0, 0)


def table(cases: list[Bad]) -> pytest.MarkDecorator:
    ids = [f"{argument}-{place}" for place, (argument, _) in enumerate(cases)]
    return pytest.mark.parametrize(("argument", "call"), cases, ids=ids)


@table(ALWAYS)
def test_refused_always(argument, call):
    with uotpool.check(False):
        assert_refused(argument, call)


@table(CHECKED)
def test_refused_under_check(argument, call):
    with uotpool.check(True):
        assert_refused(argument, call)
    with uotpool.check(False):
        call()


def test_missing_implementation_says_why(monkeypatch):
    monkeypatch.setattr(CPU, "unavailable", lambda: "no compiler found")
    for call in (lambda: pool(impl="cpu"), lambda: layer(impl="cpu")(X)):
        with pytest.raises(ValueError, match=r"^impl: .*no compiler found"):
            call()
    assert pool(impl="reference").isfinite().all()


@pytest.mark.parametrize("solver", [*SOLVERS, Newton(), Newton("quadratic")], ids=str)
@pytest.mark.parametrize("preset", ["mean", "max", "attention"])
def test_presets_take_any_solver(preset, solver):
    """`rho` of a preset goes with Bregman ADMM only."""
    model = getattr(UOTPooling, preset)(4, solver=solver)
    assert ("rho" in model.coefficients()) == (isinstance(solver, str) and solver != "sinkhorn")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_masks_of_0_and_1_are_accepted(dtype):
    mask = tensor([[1, 1, 0], [1, 0, 1]])
    assert torch.equal(pool(mask=mask.to(dtype)), pool(mask=mask.bool()))


@torch.no_grad()
def test_masks_under_a_compiler():
    torch.compiler.reset()
    mask, network = tensor([[1, 1, 0], [1, 0, 1]]), layer()
    compiled = torch.compile(network, backend="aot_eager")
    for dtype in (torch.bool, torch.int64):
        torch.testing.assert_close(compiled(X, mask=mask.to(dtype)), network(X, mask=mask.bool()))
        torch.export.export(network, (X,), {"mask": mask.to(dtype)})
    with pytest.raises(TypeError, match="mask: expected a bool"):
        torch.export.export(network, (X,), {"mask": mask.float()})
    torch.compiler.reset()


@pytest.mark.parametrize("padding", [NAN, INF, -INF])
def test_padding_is_not_checked(padding):
    """Nor read by a plan, a gap and statistics, which `check_pooling` does not see."""
    mask = tensor([[True, True, False], [True, True, True]])
    Y = torch.where(mask[..., None], X, padding)
    q0 = tensor([[0.4, 0.6, padding], [0.2, 0.3, 0.5]], dtype=X.dtype)
    with uotpool.check(True):
        P, alone = plan(Y, mask=mask, q0=q0), plan(X[:1, :2], q0=q0[:1, :2])
        assert (P[:1, :2] - alone).abs().max() <= tol.F64
        P = torch.where(mask[..., None], P, padding)
        one = gap(X[:1, :2], alone, q0=q0[:1, :2])
        assert (gap(Y, P, mask=mask, q0=q0)[:1] - one).abs().max() <= tol.F64
        for many, few in zip(stats(P, mask=mask, q0=q0), stats(alone, X[:1, :2], q0=q0[:1, :2]), strict=True):
            assert (many[:1] - few).abs().max() <= tol.F64


HOW: dict[str, dict[str, Any]] = {
    "sinkhorn": {},
    "badmm-e": {"solver": "badmm-e", "rho": 1.0},
    "badmm-q": {"solver": "badmm-q", "rho": 1.0},
    "sinkhorn-paper": {"solver": published.Sinkhorn()},
    "badmm-e-paper": {"solver": published.BregmanADMM(), "rho": 1.0},
    "badmm-q-paper": {"solver": published.BregmanADMM("quadratic"), "rho": 1.0},
    "code": {"solver": published.Sinkhorn(output="code")},
    "entropic-converged": {"solver": Newton()},
    "quadratic-converged": {"solver": Newton("quadratic")},
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


def test_the_switch_is_restored():
    def checking() -> bool:
        try:
            pool(spoilt(NAN))
        except ValueError:
            return True
        return False

    for outer in (False, True):
        with uotpool.check(outer):
            with uotpool.check(not outer):
                assert checking() is not outer
            assert checking() is outer
            with pytest.raises(KeyError), uotpool.check(not outer):
                raise KeyError
            with pytest.raises(TypeError):
                uotpool.check("on")
            assert checking() is outer
            uotpool.check(not outer)  # a plain call, which the block around it takes back
            assert checking() is not outer
            uotpool.check()
            assert checking()
    assert checking()  # as in all tests


@pytest.mark.parametrize(
    "make",
    [
        lambda: layer(p0="learned", q0="learned"),
        lambda: layer(solver="badmm-q", q0="learned", alpha1=[1.0, 2.0, 3.0, 4.0]),
        lambda: layer(K="converged", p0="learned"),
        lambda: aggregation(q0="learned"),
    ],
)
def test_a_failed_call_leaves_the_layer_as_it_was(make):
    model = make()
    before, state = model(ROWS, INDEX), copy.deepcopy(model.state_dict())
    for rows, how in ((ROWS[:, :3], {}), (ROWS.long(), {}), (ROWS, {"dim_size": 1}), (ROWS * NAN, {})):
        with pytest.raises((ValueError, TypeError)):
            model(rows, INDEX, **how)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(model(ROWS, INDEX), before)


def test_check_passes_over_tensors_without_values():
    """Meta and fake tensors have shapes only: with the checks on they still go through."""
    how = {"p0": ones(4), "q0": ones(2, 3), "mask": ones(2, 3).bool(), "alpha0": ones(4)}
    with uotpool.check(True):
        meta = {name: value.to("meta") for name, value in how.items()}
        assert pool(X.to("meta"), **meta).shape == (2, 4)
        assert gap(X.to("meta"), X.to("meta")).shape == (2,)
        with FakeTensorMode() as mode:
            fake = {name: mode.from_tensor(value) for name, value in how.items()}
            assert pool(mode.from_tensor(X), **fake).shape == (2, 4)
