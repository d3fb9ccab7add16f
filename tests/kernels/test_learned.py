"""Weights and scales that the kernels make of a layer's parameters, and the derivatives, as torch has them."""

from __future__ import annotations

import copy
import ctypes
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.kernels.harness import rand, randn
from uotpool import UOTPooling, backends, check
from uotpool.backends.cpu import library
from uotpool.problem import FLOOR, LOG, LearnedScale, LearnedWeights

each_solver = pytest.mark.parametrize("solver", SOLVERS)
FORMS = [("fixed", "log", "log"), ("softplus", "log", "fixed"), ("log", "fixed", "softplus"), ("log",) * 3]
each_sharing = pytest.mark.parametrize("shared", [False, True])
# Where softplus bends, where it is all but 0, and on both sides of where torch takes it for linear.
RAW = (-40.0, -3.0, 0.1, 2.0, 19.9, 20.1, 60.0)


# What the default layer has in place of the classic one's weights: a fixed one, logarithms, and scales.
DEFAULT = {"alpha0": 1.0, "alpha1": "log", "alpha2": "log", "rho": "log", "scale": "feature"}


def layer(solver: str, dtype: torch.dtype = torch.float64, **options: object) -> UOTPooling:
    return UOTPooling.classic(4, solver=solver, dtype=dtype, **options)


def learned(pool: UOTPooling, X: Tensor, *, by_torch: bool) -> list[Tensor]:
    """Output, and the derivatives of a combination of it by X and the parameters."""
    X = X.clone().requires_grad_()
    given = pool._problem(X, None, None, None, None)
    assert isinstance(given.weights, LearnedWeights)
    if by_torch:
        given = given._replace(weights=given.weight_rows(), scale=given.scales())
    y = backends.pool(given, pool.options)
    return [
        y.detach(),
        *torch.autograd.grad(y, [X, *pool.parameters()], randn(*y.shape, seed=5).to(y)),
    ]


@each_sharing
@each_solver
def test_as_torch_has_them(solver, shared):
    pool = layer(solver, K=len(RAW), shared=shared, impl="cpu")
    X = rand(3, 5, 4)
    with torch.no_grad():
        for i, raw in enumerate(pool.raw_weights().values()):
            values = torch.tensor(RAW, dtype=raw.dtype).roll(i).clamp(-10, None if i else 2)  # alpha0 not tiny
            raw.copy_(values[: len(raw)])
    want = learned(pool, X, by_torch=True)
    for w, g in zip(want, learned(pool, X, by_torch=False), strict=True):
        assert (g - w).abs().max() <= tol.F64_GRADIENT * max(1.0, float(w.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("forms", FORMS, ids="-".join)
@each_solver
def test_every_form_beside_every_other(solver, forms, dtype):
    """Fixed, learned by softplus or by its logarithm: each weight goes to its own place, and so do scales."""
    values = {"fixed": [0.3, 2.0, 0.9], "softplus": None, "log": "log"}
    names = ["alpha0", "alpha1", "alpha2"] + (["rho"] if solver != "sinkhorn" else [])
    options = {name: values[form] for name, form in zip(names, (*forms, forms[0]), strict=False)}
    options |= {"shared": "softplus" in forms}
    pool = UOTPooling(4, solver=solver, K=3, scale="feature", dtype=dtype, impl="cpu", **options)
    with torch.no_grad():
        for i, raw in enumerate(pool.parameters()):
            raw.copy_(0.1 * randn(*raw.shape, seed=i) + (1.0 if raw.shape == (3,) else 0.0))
    X = rand(5, 6, 4).to(dtype)
    assert isinstance(pool._problem(X, None, None, None, None).scale, LearnedScale)
    bound = tol.F64_GRADIENT if dtype == torch.float64 else tol.F32_RELATIVE
    for w, g in zip(learned(pool, X, by_torch=True), learned(pool, X, by_torch=False), strict=True):
        assert (g - w).abs().max() <= bound * max(1.0, float(w.abs().max()))


@pytest.mark.parametrize("raw", [-1e30, -1.4, -1.38, 1.38, 1.4, 1e30])
def test_a_logarithm_has_limits_and_no_derivative_beyond(raw):
    """ln(10^6) / 10 is 1.3816."""
    pool = UOTPooling(4, dtype=torch.float64, impl="cpu")
    with torch.no_grad():
        pool.raw_log_alpha2.fill_(raw)
    X = rand(3, 5, 4)
    want, got = (learned(pool, X, by_torch=by_torch) for by_torch in (True, False))
    for w, g in zip(want, got, strict=True):
        assert (g - w).abs().max() <= tol.F64_GRADIENT * max(1.0, float(w.abs().max()))
    names = [name for name, _ in pool.named_parameters()]
    by_log = got[2:][names.index("raw_log_alpha2")]
    assert bool((by_log == 0).all()) == (abs(raw) > 1.39)


def test_sets_that_are_solved_in_double():
    """Of float32 X whose numbers are too far apart for it; weights and scales are made before."""
    pool = UOTPooling(4, dtype=torch.float32, impl="cpu")
    X = 3000 * randn(3, 5, 4).float()
    want = copy.deepcopy(pool).double()(X.double())
    assert (pool(X) - want).abs().max() <= tol.F32_RELATIVE * X.abs().max()
    for w, g in zip(learned(pool, X, by_torch=True), learned(pool, X, by_torch=False), strict=True):
        assert (g - w).abs().max() <= tol.F32_RELATIVE * max(1.0, float(w.abs().max()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("raw_form_alpha1", library.TIMES_RATE),
        ("raw_length_alpha1", 0),
        ("raw_length_alpha1", 3),
        ("raw_length_rho", 1),
        ("raw_form_rho", library.FORMS[LOG]),
        ("scale_form", library.FORMS[LOG]),
    ],
)
def test_forms_that_the_library_refuses(field, value):
    names = ("alpha0", "alpha1", "alpha2")
    numbers = {"X": rand(2, 5, 4), "out": rand(2, 4), "scale": rand(4)} | {f"raw_{n}": rand(2) for n in names}
    fields = {"dtype": 1, "K": 2, "B": 2, "M": 10, "N": 5, "D": 4, "threads": 1, "scale_length": 4}
    fields |= {f"raw_length_{n}": 2 for n in names} | {name: t.data_ptr() for name, t in numbers.items()}
    forward: Any = library.load().uotpool_forward
    assert forward(ctypes.byref(library.Call(**fields))) == library.OK
    assert forward(ctypes.byref(library.Call(**fields | {field: value}))) == library.BAD_ARGUMENT


@pytest.mark.parametrize(
    ("name", "shape"), [("raw_scale", (1,)), ("raw_scale", ()), ("scale", (0,)), ("scale", (4,))]
)
def test_a_scale_of_another_shape_is_refused_by_name(name, shape):
    pool = UOTPooling(4) if name == "raw_scale" else UOTPooling.classic(4, start="mean")
    with pytest.raises(ValueError, match=rf"{name}: expected a parameter of shape \("):
        functional_call(pool, {name: torch.zeros(shape)}, (rand(2, 3, 4).float(),))


def call_with_fake_tensors(pool: UOTPooling, X: Tensor) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        pool(X)


TRANSFORMS = {
    "grad": lambda pool, X: torch.func.grad(lambda X: pool(X).sum())(X),
    "jvp": lambda pool, X: torch.func.jvp(pool, (X,), (X,)),
    "hessian": lambda pool, X: torch.func.hessian(lambda X: pool(X).sum())(X),
    "vmap": lambda pool, X: torch.func.vmap(torch.func.grad(lambda X: pool(X).sum()))(X[None]),
    "functionalize": lambda pool, X: torch.func.functionalize(pool)(X),
    "fake tensors": call_with_fake_tensors,
}


@pytest.mark.parametrize(
    "options", [DEFAULT, {"alpha0": 1.0, "alpha1": 2.0, "alpha2": 0.5}], ids=["log", "fixed"]
)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_a_transform_saw_is_not_kept_for_later_calls(transform, options):
    """The rows of fixed weights are kept between calls."""
    X = rand(2, 3, 4)
    pool, other = (layer("sinkhorn", **options) for _ in range(2))
    with check(False):  # nobody can look at the values there
        TRANSFORMS[transform](pool, X)
    assert torch.equal(pool(X), other(X))
    for again in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        assert torch.equal(again(X), other(X))


@pytest.mark.parametrize("way", ["replace", "write", "data", "numpy", "parametrize"])
def test_a_fixed_weight_that_changes_is_seen(way):
    X, pool = rand(2, 3, 4), layer("sinkhorn", **DEFAULT)
    pool(X)
    if way == "replace":  # in a copy too, where the first one's buffer may have left its place
        pool = copy.deepcopy(pool)
        pool.alpha0 = torch.tensor(0.3, dtype=torch.float64)
    elif way == "write":
        pool.alpha0.fill_(0.3)
    elif way == "data":
        pool.alpha0.data.fill_(0.3)
    elif way == "numpy":
        pool.alpha0.numpy().fill(0.3)
    else:
        torch.nn.utils.parametrize.register_parametrization(pool, "alpha0", Times())
        pool(X)
        pool.parametrizations.alpha0[0].factor = 0.3
    want = layer("sinkhorn", **DEFAULT | {"alpha0": 0.3})(X)
    assert (pool(X) - want).abs().max() <= tol.F64


class Times(torch.nn.Module):
    factor = 1.0

    def forward(self, value: Tensor) -> Tensor:
        return self.factor * value


def test_a_fixed_weight_with_a_graph_is_new_in_each_call():
    pool, X, alpha0 = layer("sinkhorn", **DEFAULT), rand(2, 3, 4), torch.tensor(1.0).double().requires_grad_()
    for _ in range(2):
        functional_call(pool, {"alpha0": alpha0}, (X,)).square().sum().backward()
    assert alpha0.grad is not None
    assert alpha0.grad != 0


def test_other_modules_than_fixed_weights_were_given_for():
    pool = UOTPooling(4, alpha0=[1.0, 2.0, 3.0, 4.0])
    pool.K = 8
    with pytest.raises(ValueError, match="K: expected 4, for which the layer was made, got 8"):
        pool(rand(2, 3, 4).float())


@each_solver
def test_the_least_weight(solver):
    """All weights are FLOOR, in the unit of which X is then."""
    pool = layer(solver, impl="cpu")
    with torch.no_grad():
        for raw in pool.raw_weights().values():
            raw.fill_(-100.0)
    X = FLOOR * rand(3, 5, 4)
    y, *_ = learned(pool, X, by_torch=False)
    want, *_ = learned(pool, X, by_torch=True)
    assert (y - X.mean(1)).abs().max() > 0.01 * FLOOR
    assert (y - want).abs().max() <= tol.F64 * FLOOR


@each_sharing
def test_derivatives_of_one_parameter_alone(shared):
    pool = layer("badmm-e", shared=shared, impl="cpu")
    X = rand(2, 3, 4)
    everything = torch.autograd.grad(pool(X).square().sum(), list(pool.raw_weights().values()))
    for (_, raw), want in zip(pool.raw_weights().items(), everything, strict=True):
        for other in pool.raw_weights().values():
            other.requires_grad_(other is raw)
        (got,) = torch.autograd.grad(pool(X).square().sum(), [raw])
        assert torch.equal(got, want)


@pytest.mark.parametrize("options", [{}, {"shared": True}, DEFAULT, DEFAULT | {"alpha1": 2.0}], ids=str)
@each_solver
def test_gradients_of_a_batch_of_directions(solver, options):
    """`is_grads_batched=True` hands down directions without memory of their own, to the operators."""
    pool = layer(solver, impl="cpu", **options)
    X = rand(2, 3, 4).requires_grad_()
    y, inputs = pool(X), [X, *pool.parameters()]
    directions = randn(5, *y.shape)
    together = torch.autograd.grad(y, inputs, directions, is_grads_batched=True, retain_graph=True)
    for i, direction in enumerate(directions):
        each = torch.autograd.grad(y, inputs, direction, retain_graph=True)
        for a, b in zip(together, each, strict=True):
            assert (a[i] - b).abs().max() <= tol.F64_GRADIENT


def test_parameters_that_are_views():
    """With strides, or with a sign that is only a flag."""
    pool = layer("sinkhorn", impl="cpu")
    X, names = rand(2, 3, 4), ("raw_alpha0", "raw_alpha1", "raw_alpha2")
    values = [randn(4, seed=i) for i in range(3)]
    want = functional_call(pool, dict(zip(names, values, strict=True)), (X,))
    strided = [torch.stack([v, v], dim=1)[:, 0] for v in values]
    negative = [torch.complex(v, -v).conj().imag for v in values]
    assert all(v.is_neg() for v in negative)
    for views in (strided, negative):
        assert torch.equal(functional_call(pool, dict(zip(names, views, strict=True)), (X,)), want)


def test_parameters_of_another_precision_are_converted():
    pool = layer("sinkhorn", torch.float32, impl="cpu")
    X = rand(2, 3, 4)
    assert pool(X).dtype == torch.float64
    assert (pool(X) - pool(X.float())).abs().max() <= tol.F32
    # The parameters are converted, and not the weights that float32 would make of them.
    assert torch.equal(pool(X), copy.deepcopy(pool).double()(X))


@pytest.mark.parametrize("length", [1, 3])
def test_a_parameter_of_another_length_is_refused_by_name(length):
    """The library trusts that each has one number, or one for each module."""
    pool, X = layer("sinkhorn"), rand(2, 3, 4)
    with pytest.raises(ValueError, match=r"raw_alpha2: expected a parameter of shape \(4,\), got a float64"):
        functional_call(pool, {"raw_alpha2": torch.zeros(length, dtype=X.dtype)}, (X,))
    pool.raw_alpha1 = torch.nn.Parameter(torch.zeros(length, dtype=X.dtype))
    with pytest.raises(ValueError, match="raw_alpha1: expected a parameter of shape"):
        pool(X)
    pool = layer("sinkhorn")
    pool.K = 8
    with pytest.raises(ValueError, match="K: expected 4, for which the layer was made, got 8"):
        pool(X)


class Identity(torch.nn.Module):
    def forward(self, raw: Tensor) -> Tensor:
        return raw


def test_parameters_that_the_module_does_not_hold_itself():
    """A parametrization takes them away, as does the replica of a data parallel model."""
    X = rand(2, 3, 4)
    pool = layer("sinkhorn", start="mean")
    with torch.no_grad():
        pool.scale.fill_(0.7)
    want, weights = pool(X), pool.weights()
    for name in ("raw_alpha0", "scale"):
        torch.nn.utils.parametrize.register_parametrization(pool, name, Identity())
    assert torch.equal(pool.weights().alpha0, weights.alpha0)
    assert (pool(X) - want).abs().max() <= tol.F64


def test_hooks_on_saved_tensors():
    """They may hand back other strides, but not another tensor."""
    pool = layer("sinkhorn", impl="cpu")
    X = rand(2, 3, 4).requires_grad_()
    (want,) = torch.autograd.grad(pool(X).square().sum(), X)
    for change in (lambda t: t.mT.contiguous().mT if t.dim() > 1 else t, lambda t: t.clone()):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, change):
            y = pool(X).square().sum()
        (got,) = torch.autograd.grad(y, X)
        assert torch.equal(got, want)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.half()):
        y = pool(X)
    with pytest.raises(RuntimeError, match="saved_tensors_hooks: expected the tensor that was saved"):
        y.backward(torch.ones_like(y))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # by torch itself
def test_compiled_autograd():
    """It traces the backward of an eager call; a `dout` of strides 0 was read after it was freed."""
    pool = layer("sinkhorn", impl="cpu")
    X = rand(2, 3, 4).requires_grad_()
    (want,) = torch.autograd.grad(pool(X).sum(), X)
    loss = pool(X).sum()

    def backward() -> None:
        loss.backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(backward, backend="eager")()
    assert X.grad is not None
    assert (X.grad - want).abs().max() <= tol.F64
