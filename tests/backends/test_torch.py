"""The kernels as torch operators: schemas, compilers, exporters, and the derivatives that they do not have."""

from __future__ import annotations

import io

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import forward_ad

from tests import tolerances as tol
from tests.cases import SOLVERS, step
from tests.backends.harness import dense, equal, masked, modules, rand, randn, solved
from tests.spelling import CLASSIC, make_layer, uot_plan, uot_pool
from uotpool import check
from uotpool.backends.cpu import ops

D = 3
each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])


def close(a, b, tolerance=tol.F64):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- the operators

PTR, ORDER = torch.tensor([0, 2, 2, 6]), torch.tensor([3, 1, 0, 6, 5, 2, 4])
GROUPS = {"dense": (None, None, 2, 3), "ptr": (PTR, None, 0, 3), "rows": (PTR, ORDER, 0, 3)}


def arguments(solver, plan, layout, *, grad=True, p0="each", scale=0, dtype=torch.float64):
    """Of torch.ops.uotpool.solve."""
    ptr, order, N, B = GROUPS[layout]
    X = rand(7 if layout == "rows" else 6, D)
    log_p0 = randn(B, D) if p0 == "each" else randn(D)
    weights = torch.stack([w for w in modules(solver, 2) if w is not None])
    floats = [t.to(dtype).requires_grad_(grad) for t in (X, log_p0, randn(len(X)), weights, randn(scale or 1))]
    return (floats[0], ptr, order, N, *floats[1:4], floats[4] if scale else None, B, solver, plan)


# An opcheck takes a second, and sees shapes: all of them with one solver, which has all four weights.
CHECKED = [("badmm-q", case, layout) for case in (False, True) for layout in GROUPS]
CHECKED += [("sinkhorn", True, "rows"), ("badmm-e", False, "ptr")]


@pytest.mark.parametrize(("solver", "plan", "layout"), CHECKED)
def test_opcheck_solve(solver, plan, layout):
    scale = {"dense": 0, "ptr": 1, "rows": D}[layout]
    given = arguments(solver, plan, layout, p0="shared", scale=scale)
    torch.library.opcheck(torch.ops.uotpool.solve.default, given)


@pytest.mark.parametrize(("solver", "all_wanted", "layout"), CHECKED)
def test_opcheck_solve_backward(solver, all_wanted, layout):
    given = arguments(solver, False, layout, grad=False, scale=D if all_wanted else 0)
    wanted = [True] * 5 if all_wanted else [False, True, False, True, False]
    torch.library.opcheck(torch.ops.uotpool.solve_backward.default, (randn(3, D), *given, wanted))


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
    want = solved(problem, weights, solver, plan=plan, impl="cpu")
    monkeypatch.setattr(ops, "all_eager", lambda X: False)
    assert equal(want, solved(problem, weights, solver, plan=plan, impl="cpu")) == []


# --- compilers


def batch(layout, n):
    """A batch whose sizes depend on n."""
    if layout in ("dense", "mask"):
        mask = torch.arange(n + 2) < torch.arange(1, n + 1)[:, None]
        return randn(n, n + 2, D, seed=n), {"mask": mask} if layout == "mask" else {}
    X = randn(3 * n, D, seed=n)
    if layout == "ptr":
        return X, {"ptr": torch.tensor([0, 0, *range(3, 3 * n + 1, 3)])}
    return X, {"index": torch.arange(3 * n) * 5 % n, "dim_size": n + 1}


def with_gradients(pool, layer, X, **sets):
    inputs = [X.detach().clone().requires_grad_(), *layer.parameters()]
    y = pool(inputs[0], **sets)
    return [y.detach(), *torch.autograd.grad((y * randn(*y.shape, seed=9)).sum(), inputs)]


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


CALLED = {"sinkhorn": "dense", "badmm-e": "ptr", "badmm-q": "index"}


@each_solver
def test_compiled_graph_holds_the_operators(dynamo, solver):
    """One graph for all sizes, forward and backward, with the operators in it and the results of eager."""
    layout = CALLED[solver]
    layer = make_layer(D, **CLASSIC, solver=solver, K=2, impl="cpu").double()  # so that it cannot fall back
    graphs = []

    def keep(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=aot_autograd(fw_compiler=keep))
    for n in (4, 7):
        X, sets = batch(layout, n)
        got, want = (with_gradients(pool, layer, X, **sets) for pool in (compiled, layer))
        for a, b in zip(got, want, strict=True):
            close(a, b)
    forward, backward = graphs  # one of each, whatever the sizes
    assert forward.count(torch.ops.uotpool.solve.default) == 1
    assert backward.count(torch.ops.uotpool.solve_backward.default) == 1
    assert forward.count(torch.ops.uotpool.group.default) == (layout == "index")


def test_compiled_takes_the_kernels_by_itself(dynamo):
    seen = []

    def keep(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    layer = make_layer(D, **CLASSIC, K=1).double()
    X, sets = batch("index", 3)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend=keep)(X, **sets), layer(X, **sets))
    assert torch.ops.uotpool.solve in seen


@each_solver
def test_compiled_reference_holds_none(dynamo, solver):
    seen = []

    def keep(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    layer = make_layer(D, **CLASSIC, solver=solver, K=1, impl="reference").double()
    X, _ = batch("dense", 3)
    close(torch.compile(layer, fullgraph=True, backend=keep)(X), layer(X))
    assert seen
    assert not [name for name in seen if "uotpool" in name]


@each_solver
def test_export_round_trip(solver):
    """Saved, loaded, and run on other sizes; the operators are in the program."""
    layer = make_layer(D, **CLASSIC, solver=solver, K=2, p0="learned", q0="learned").double()
    X, sets = batch("mask", 4)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("N")}
    program = torch.export.export(layer, (X,), sets, dynamic_shapes={"X": sizes, "mask": sizes})
    assert "uotpool.solve" in str(program.graph)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for n in (1, 4, 9):
        X, sets = batch("mask", n)
        assert torch.equal(loaded(X, **sets), layer(X, **sets))


# --- derivatives that are not there


@each_head
@each_solver
def test_second_derivative_names_the_reference(solver, plan):
    X = dense(2, 4, 3).X.requires_grad_()
    run = uot_plan if plan else uot_pool

    def first(impl):
        y = run(X, 0.5, 1.0, 1.0, step(solver), solver=solver, impl=impl)
        (dX,) = torch.autograd.grad(y.square().sum(), X, create_graph=True)
        return dX

    close(first("cpu").detach(), first("reference").detach())
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(first("cpu").square().sum(), X)
    torch.autograd.grad(first("reference").square().sum(), X)


@each_solver
def test_second_derivative_through_the_operators(solver):
    given = arguments(solver, False, "dense")
    y = torch.ops.uotpool.solve(*given)
    (dX,) = torch.autograd.grad(y.square().sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), given[0])


def penalty(pool, X):
    """A gradient penalty, as people write it."""
    y = pool(X)
    (dX,) = torch.autograd.grad(y.sum(), X, create_graph=True)
    return dX.square().sum()


def test_gradient_penalty_says_what_to_do():
    X = dense(2, 4, 3).X.requires_grad_()
    with pytest.raises(RuntimeError, match=r'derivatives of derivatives.* use impl="reference"'):
        penalty(make_layer(3, **CLASSIC).double(), X).backward()
    penalty(make_layer(3, **CLASSIC, impl="reference").double(), X).backward()
    assert X.grad is not None
    assert X.grad.abs().max() > 0


def transforms(impl, solver):
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
        "vjp": lambda: torch.func.vjp(pool, X)[1](randn(3, 3))[0],
        "jvp": lambda: torch.func.jvp(pool, (X,), (V,))[1],
        "hessian": lambda: torch.func.hessian(lambda x: pool(x).square().sum())(X[:1, :2]),
        "vmap of grad": lambda: torch.func.vmap(torch.func.grad(lambda x: pool(x[None]).square().sum()))(X),
        "forward mode": dual,
    }


@pytest.mark.parametrize("name", transforms("auto", "sinkhorn"))
@each_solver
def test_transforms_fall_back_to_the_reference(solver, name):
    with check(False):  # vmap cannot look at values
        got, want = (transforms(impl, solver)[name]() for impl in ("auto", "reference"))
    assert torch.equal(got, want)
    with (
        check(False),
        pytest.raises(ValueError, match=r'X: expected for impl="cpu" a tensor on the CPU outside torch\.func'),
    ):
        transforms("cpu", solver)[name]()


@pytest.mark.parametrize("name", ["vmap", "grad", "vmap of grad"])
def test_compiled_transforms(dynamo, name):
    """A transform inside of a compiled function, too, gets the reference."""
    with check(False):
        run = transforms("auto", "sinkhorn")[name]
        close(torch.compile(run, fullgraph=True, backend="eager")(), run())


def test_the_kernels_are_back_after_a_transform():
    """Nothing of a transform stays: the next plain call runs on the kernels again."""
    with check(False):
        for run in transforms("auto", "sinkhorn").values():
            run()
    problem, weights = dense(2, 6, 5), modules("sinkhorn", 2)
    assert equal(solved(problem, weights, "sinkhorn"), solved(problem, weights, "sinkhorn", impl="cpu")) == []


# --- autograd


@each_solver
def test_inputs_changed_in_place_are_noticed(solver):
    X = dense(2, 4, 3).X.requires_grad_()
    inside = X * 1.0
    y = uot_pool(inside, 0.5, 1.0, 1.0, step(solver), solver=solver, impl="cpu")
    with torch.no_grad():
        inside.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@each_solver
def test_backward_twice_and_accumulation(solver):
    X = dense(2, 4, 3).X.requires_grad_()
    y = uot_pool(X, 0.5, 1.0, 1.0, step(solver), solver=solver, impl="cpu")
    y.backward(randn(2, 3), retain_graph=True)
    assert X.grad is not None
    once = X.grad.clone()
    y.backward(randn(2, 3))
    assert torch.equal(X.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward(randn(2, 3))


def test_no_graph_where_none_is_wanted():
    X = dense(2, 4, 3).X
    assert uot_pool(X, 0.5, 1.0, 1.0, impl="cpu").grad_fn is None
    X.requires_grad_()
    with torch.no_grad():
        assert uot_pool(X, 0.5, 1.0, 1.0, impl="cpu").grad_fn is None
    with torch.inference_mode():
        assert uot_pool(X, 0.5, 1.0, 1.0, impl="cpu").is_inference()
    assert uot_pool(X, 0.5, 1.0, 1.0, impl="cpu").requires_grad
