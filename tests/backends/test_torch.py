"""The kernels as torch operators: schemas, compilers, exporters, autograd, and how short an eager call is."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import uotpool
from tests import tolerances as tol
from tests.backends.harness import dense, equal, masked, modules, rand, randn, solved
from tests.cases import SOLVERS, step
from uotpool import Learned, UOTPooling, check, uot_pool
from uotpool.backends import ops
from uotpool.backends.cpu.backend import CPU
from uotpool.nn import pooling

D = 3
each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
STEPS = Learned(transform="softplus", per_step=True)
POOLINGS: dict[str, dict[str, Any]] = {
    "the default": {},
    "all fixed": {"alpha1": 2.0, "alpha2": [0.1, 1.0, 2.0, 3.0], "scale": [1.0, 0.0, -2.0]},
    "all learned": {"alpha0": Learned(), "alpha1": STEPS, "alpha2": STEPS},
    "mixed, with priors": {"alpha1": STEPS, "alpha2": 0.5, "p0": "learned", "q0": "learned"},
    "no scale": {"scale": 1.0},
    "badmm-e": {"solver": "badmm-e", "alpha0": [1.0, 2.0, 1.0, 2.0], "rho": STEPS},
    "badmm-q": {"solver": "badmm-q"},
}
each_pooling = pytest.mark.parametrize("name", POOLINGS)


def make(name: str, **options: Any) -> UOTPooling:
    torch.manual_seed(0)
    return UOTPooling(D, **POOLINGS[name] | options).double()


def sets_of(layout: str, n: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """A batch whose sizes depend on n."""
    if layout in ("dense", "mask"):
        mask = torch.arange(n + 2) < torch.arange(1, n + 1)[:, None]
        return randn(n, n + 2, D, seed=n), {"mask": mask} if layout == "mask" else {}
    X = randn(3 * n, D, seed=n)
    if layout == "ptr":
        return X, {"ptr": torch.tensor([0, 0, *range(3, 3 * n + 1, 3)])}
    return X, {"index": torch.arange(3 * n) * 5 % n, "dim_size": n + 1}


def with_gradients(run: Any, pool: UOTPooling, X: torch.Tensor, **sets: Any) -> list[torch.Tensor]:
    inputs = [X.detach().clone().requires_grad_(), *pool.parameters()]
    y = run(inputs[0], **sets)
    return [y.detach(), *torch.autograd.grad((y * randn(*y.shape, seed=9)).sum(), inputs)]


def same(got: Any, want: Any, tolerance: float = tol.F64) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- the operators


def arguments(name: str, layout: str, *, plan: bool = False, grad: bool = False) -> tuple[Any, ...]:
    """Of torch.ops.uotpool.solve, as a call of a layer makes them."""
    pool, (X, sets) = make(name), sets_of(layout, 3)
    with torch.set_grad_enabled(grad):
        _, call = pool._call(
            X.requires_grad_(grad),
            None,
            sets.get("index"),
            sets.get("ptr"),
            sets.get("dim_size"),
            sets.get("mask"),
        )
        a = ops.arguments(CPU, call, plan)
    leaves = [None if t is None else t.detach().requires_grad_(grad) for t in a.differentiable()]
    return tuple(a._replace(X=leaves[0], log_p0=leaves[1], log_q0=leaves[2], raw=leaves[3:]))  # type: ignore[arg-type]


CHECKED = [*((name, "index") for name in POOLINGS), ("mixed, with priors", "mask"), ("all fixed", "dense")]


@pytest.mark.parametrize(("name", "layout"), CHECKED)
def test_opcheck_solve(name, layout):
    given = arguments(name, layout, grad=True, plan=layout == "index")
    torch.library.opcheck(torch.ops.uotpool.solve.default, given)


@pytest.mark.parametrize(("name", "layout"), CHECKED)
def test_opcheck_solve_backward(name, layout):
    given = arguments(name, layout)
    a = ops.Arguments(*given)
    every = [t is not None for t in a.differentiable()]
    for wanted in (every, [w and i % 2 == 0 for i, w in enumerate(every)]):
        dout = randn(*a.output_shape())
        torch.library.opcheck(torch.ops.uotpool.solve_backward.default, (dout, [], *given, wanted))


def test_opcheck_group():
    X, index, present = rand(7, D), torch.tensor([2, 0, 2, 1, 1, 0, 2]), rand(7) < 0.6
    assert not present.all()
    for given in ((X, index, None, 4, 0), (X, index, present, 4, 0), (X[:6], None, present[:6], 3, 2)):
        torch.library.opcheck(torch.ops.uotpool.group.default, given)


@each_head
@each_solver
def test_operator_and_function_are_one(solver, plan, monkeypatch):
    """An eager call takes a shorter way than a traced one, which sees operators: to the same bits."""
    problem, weights = masked(3, 6, 5, p0="shared")._replace(scale=randn(5, seed=4)), modules(solver, 2)
    weights[1] = 2.0  # a fixed one among them
    want = solved(problem, weights, solver, plan=plan, impl="cpu")
    monkeypatch.setattr(ops, "all_eager", lambda tensors: False)
    assert equal(want, solved(problem, weights, solver, plan=plan, impl="cpu")) == []


def test_operators_refuse_what_does_not_fit():
    """C has the same bounds, but for shapes and dtypes of tensors."""
    a = ops.Arguments(*arguments("mixed, with priors", "index"))
    solve, backward = torch.ops.uotpool.solve, torch.ops.uotpool.solve_backward
    raw, codes, lengths = a.raw, a.transforms, a.lengths
    assert a.ptr is not None
    assert a.order is not None
    assert a.log_p0 is not None
    assert a.log_q0 is not None
    wrong: list[dict[str, Any]] = [
        {"kernel": "gpu"},
        {"kernel": "triton"},
        {"X": a.X.half()},
        {"X": a.X.float()},
        {"X": a.X[0, 0]},
        {"ptr": a.ptr[:-1]},
        {"ptr": a.ptr.int()},
        {"ptr": None},
        {"order": a.order[:-1]},
        {"order": a.order.float()},
        {"present": torch.ones(a.X.shape[0], dtype=torch.bool)},
        {"log_p0": a.log_p0[:, :-1]},
        {"log_p0": a.log_p0.float()},
        {"log_q0": a.log_q0[:-1]},
        {"raw": raw[:-1]},
        {"raw": [raw[0][:-1], *raw[1:]]},
        {"raw": [raw[0].float(), *raw[1:]]},
        {"transforms": codes[:-1]},
        {"transforms": [9, *codes[1:]]},
        {"transforms": [0, *codes[1:]]},
        {"fixed": [*a.fixed, 1.0]},
        {"lengths": [2, *lengths[1:]]},
        {"solver": "badmm-e"},
        {"solver": "mine"},
        {"K": 0},
        {"K": 3},
        {"num_sets": a.num_sets + 1},
        {"num_sets": -1},
        {"N": -1},
    ]
    assert solve(*a)[0].isfinite().all()
    for change in wrong:
        with pytest.raises(ValueError, match="uotpool::solve"):
            solve(*a._replace(**change))
    dout, wanted = randn(*a.output_shape()), [True] * len(a.differentiable())
    assert len(backward(dout, [], *a, wanted)) == len(wanted)
    for wrong_dout, saved in ((dout[:-1], []), (dout.float(), []), (dout, [dout])):
        with pytest.raises(ValueError, match="uotpool::solve_backward"):
            backward(wrong_dout, saved, *a, wanted)
    turned = a._replace(X=a.X.t().contiguous().t())
    assert torch.equal(solve(*turned)[0], solve(*a)[0])


def test_one_meta_tensor_among_others_is_refused():
    """Torch hands such a call to the function for shapes, whose result was what the memory held before."""
    a = ops.Arguments(*arguments("the default", "dense"))
    spoilt = a._replace(raw=[a.raw[0].to("meta"), *a.raw[1:]])
    calls = {
        "group": (a.X.flatten(0, 1), torch.zeros(15, dtype=torch.int64, device="meta"), None, 2, 0),
        "solve": (*spoilt,),
        "solve_backward": (randn(3, D), [], *spoilt, [True] * 6),
    }
    for name, given in calls.items():
        with pytest.raises(ValueError, match=rf"^uotpool::{name}: expected all tensors on one device"):
            getattr(torch.ops.uotpool, name)(*given)


# --- compilers


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


COMPILED = [*((name, "dense", "eager") for name in POOLINGS)]
COMPILED += [("all learned", "mask", "aot_eager"), ("mixed, with priors", "ptr", "aot_eager")]
COMPILED += [
    ("all fixed", "index", "aot_eager"),
    ("badmm-e", "index", "aot_eager"),
    ("badmm-q", "ptr", "eager"),
]


@pytest.mark.parametrize(("name", "layout", "backend"), COMPILED)
def test_compiled(dynamo, name, layout, backend):
    pool, (X, sets) = make(name, impl="cpu"), sets_of(layout, 4)  # so that it cannot fall back
    same(
        with_gradients(torch.compile(pool, fullgraph=True, backend=backend), pool, X, **sets),
        with_gradients(pool, pool, X, **sets),
    )


@pytest.mark.usefixtures("inductor", "dynamo")
def test_compiled_by_inductor():
    pool, (X, sets) = make("mixed, with priors"), sets_of("index", 4)
    got = with_gradients(torch.compile(pool, fullgraph=True), pool, X, **sets)
    same(got, with_gradients(pool, pool, X, **sets), tol.F64_GRADIENT)


@pytest.mark.parametrize(
    ("name", "layout"), [("the default", "dense"), ("badmm-e", "ptr"), ("badmm-q", "index")]
)
def test_one_compiled_graph_holds_the_operators(dynamo, name, layout):
    """For all sizes, forward and backward, and with the results of eager calls."""
    pool, graphs = make(name), []

    def keep(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=keep))
    for n in (4, 7):
        X, sets = sets_of(layout, n)
        same(with_gradients(compiled, pool, X, **sets), with_gradients(pool, pool, X, **sets))
    forward, backward = graphs  # one of each, whatever the sizes
    assert forward.count(torch.ops.uotpool.solve.default) == 1
    assert backward.count(torch.ops.uotpool.solve_backward.default) == 1
    assert forward.count(torch.ops.uotpool.group.default) == (layout == "index")


@each_pooling
def test_export_round_trip(name):
    """Saved, loaded, and run on other sizes; the operators are in the program."""
    pool, (X, sets) = make(name), sets_of("mask", 4)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("N")}
    program = torch.export.export(pool, (X,), sets, dynamic_shapes={"X": sizes, "mask": sizes})
    assert "uotpool.solve" in str(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n in (1, 9):
        X, sets = sets_of("mask", n)
        assert torch.equal(loaded(X, **sets), pool(X, **sets))


@pytest.mark.filterwarnings("ignore:.*non-leaf Tensor")  # the compiler looks at the loss
@pytest.mark.parametrize("name", ["the default", "all fixed", "badmm-e"])
def test_compiled_autograd(dynamo, name):
    """The backward pass alone is compiled: of a graph that an eager call made."""
    pool, (X, sets) = make(name), sets_of("index", 4)
    wanted = [X.requires_grad_(), *pool.parameters()]
    want = torch.autograd.grad(pool(X, **sets).sum(), wanted)
    loss = pool(X, **sets).sum()

    def backward() -> None:
        loss.backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(backward, backend="eager")()
    same([t.grad for t in wanted], want)


# --- derivatives that are not there


@each_head
@each_solver
def test_second_derivative_names_the_reference(solver, plan):
    X = dense(2, 4, 3).X.requires_grad_()
    posed = uotpool.Problem(X, alpha0=0.5, alpha1=1.0, alpha2=1.0, rho=step(solver))

    def first(impl):
        y = (posed.plan if plan else posed.pool)(solver, impl=impl)
        return torch.autograd.grad(y.square().sum(), X, create_graph=True)[0]

    same([first("cpu").detach()], [first("reference").detach()])
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(first("cpu").square().sum(), X)
    torch.autograd.grad(first("reference").square().sum(), X)


def test_second_derivative_through_the_operators():
    given = arguments("all fixed", "dense", grad=True)
    y = torch.ops.uotpool.solve(*given)[0]
    (dX,) = torch.autograd.grad(y.square().sum(), given[1], create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), given[1])


def transforms(impl, solver="sinkhorn"):
    """Results of torch.func and of forward mode, by name."""
    X = dense(3, 4, 3).X
    V = randn(*X.shape, seed=8)

    def pool(X):
        return uot_pool(X, 0.5, 1.0, 1.0, step(solver), solver=solver, impl=impl)

    def dual():
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(pool(forward_ad.make_dual(X, V))).tangent

    return {
        "vmap": lambda: torch.func.vmap(lambda x: pool(x[None])[0])(X),
        "grad": lambda: torch.func.grad(lambda x: pool(x).square().sum())(X),
        "jvp": lambda: torch.func.jvp(pool, (X,), (V,))[1],
        "hessian": lambda: torch.func.hessian(lambda x: pool(x).square().sum())(X[:1, :2]),
        "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda x: pool(x[None]).square().sum()))(X),
        "forward mode": dual,
    }


@pytest.mark.parametrize("name", transforms("auto"))
@each_solver
def test_transforms_fall_back_to_the_reference(solver, name):
    with check(False):  # vmap cannot look at values
        got, want = (transforms(impl, solver)[name]() for impl in ("auto", "reference"))
        assert torch.equal(got, want)
        with pytest.raises(ValueError, match="impl"):
            transforms("cpu", solver)[name]()
    problem, weights = dense(2, 6, 5), modules(solver, 2)  # nothing of a transform stays
    assert equal(solved(problem, weights, solver), solved(problem, weights, solver, impl="cpu")) == []


@pytest.mark.parametrize("name", ["vmap", "grad", "vmap of grad"])
def test_compiled_transforms(dynamo, name):
    """A transform inside of a compiled function, too, gets the reference."""
    with check(False):
        run = transforms("auto")[name]
        same([torch.compile(run, fullgraph=True, backend="eager")()], [run()])


# --- autograd


@each_pooling
def test_batched_gradients(name):
    pool, (X, sets) = make(name), sets_of("index", 3)
    wanted = [X.requires_grad_(), *pool.parameters()]
    y = pool(X, **sets)
    dys = randn(5, *y.shape, seed=6)
    batched = torch.autograd.grad(y, wanted, dys, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, wanted, dy, retain_graph=True) for dy in dys]
    same(batched, [torch.stack(each) for each in zip(*single, strict=True)])


@each_pooling
def test_saved_tensor_hooks(name):
    """What a backward pass needs goes through the hooks: offloaded, and seen one by one."""
    pool, (X, sets) = make(name), sets_of("index", 3)
    want, seen = with_gradients(pool, pool, X, **sets), []
    with save_on_cpu():
        assert all(map(torch.equal, with_gradients(pool, pool, X, **sets), want))
    with saved_tensors_hooks(lambda t: seen.append(t) or t.clone(), lambda t: t):
        assert all(map(torch.equal, with_gradients(pool, pool, X, **sets), want))
    assert any(t.shape == X.shape for t in seen)


@each_solver
def test_inputs_changed_in_place_are_noticed(solver):
    X = dense(2, 4, 3).X.requires_grad_()
    inside = X * 1.0
    y = uot_pool(inside, 0.5, 1.0, 1.0, step(solver), solver=solver, impl="cpu")
    with torch.no_grad():
        inside.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_backward_twice_and_accumulation():
    pool, (X, sets) = make("the default"), sets_of("index", 3)
    y = pool(X.requires_grad_(), **sets)
    y.sum().backward(retain_graph=True)
    assert X.grad is not None
    once = X.grad.clone()
    y.sum().backward()
    assert torch.equal(X.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_no_graph_where_none_is_wanted():
    X = dense(2, 4, 3).X
    run = make("all fixed", impl="cpu")
    assert run(X).grad_fn is None
    X.requires_grad_()
    with torch.no_grad():
        assert run(X).grad_fn is None
    with torch.inference_mode():
        assert run(X).is_inference()
    assert run(X).requires_grad


def test_a_layer_that_was_first_used_in_inference_mode_can_be_trained():
    for name in POOLINGS:
        pool, (X, sets) = make(name), sets_of("index", 3)
        with torch.inference_mode():
            pool(X, **sets)
        assert all(t.isfinite().all() for t in with_gradients(pool, pool, X, **sets))


# --- the way of an eager call


def frames(pool, X, **sets):
    """Return the Python functions that a call enters before the status of the kernel is checked."""
    names: list[str] = []

    def watch(frame, event, _):
        if event == "call":
            names.append(frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        pool.forward(X, **sets)
    finally:
        sys.setprofile(before)
    return names[: len(names) - 1 - names[::-1].index("check")]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions inline other functions")
@pytest.mark.parametrize(("layout", "more"), [("dense", 0), ("ptr", 15), ("index", 32)])
def test_few_frames_of_python_lead_to_the_kernel(layout, more):
    pool, (X, sets) = UOTPooling(D), sets_of(layout, 3)
    with check(False):
        pool(X.float(), **sets)  # what is done once
        with torch.no_grad():
            assert len(frames(pool, X.float(), **sets)) <= 25 + more
        assert len(frames(pool, X.float(), **sets)) <= 40 + more


@each_pooling
def test_a_call_is_validated_once(monkeypatch, name):
    calls, real = [], pooling.as_sets

    def counted(*args, **kwargs):
        calls.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(pooling, "as_sets", counted)
    pool = make(name)
    for layout in ("dense", "mask", "index", "ptr"):
        X, sets = sets_of(layout, 3)
        calls.clear()
        pool(X, **sets)
        assert len(calls) == 1
