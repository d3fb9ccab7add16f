"""The window kernel against unfolding and the reference, at every width, and what must not matter to it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.autograd import gradcheck

from tests import tolerances as tol
from tests.cases import DECADES
from tests.kernels.harness import equal, rand, randn
from tests.kernels.raw import NATIVE
from tests.kernels.windows import case, compare, fused, output_size, reference, solved
from uotpool.backends.cpu import library, windows

FORMATS = (torch.contiguous_format, torch.channels_last)
each_format = pytest.mark.parametrize("memory_format", FORMATS, ids=("nchw", "nhwc"))
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)

# Around the widths of vectors (2 to 16 lanes), windows that overlap, leave gaps, end in the padding.
CASES = {
    "2x2": case((2, 5, 6, 8), (2, 2)),
    "2x2, many lanes": case((2, 16, 8, 40), (2, 2), K=4),
    "2x2, odd sizes": case((2, 3, 7, 9), (2, 2)),
    "2x2, ceil": case((2, 17, 7, 9), (2, 2), ceil=True),
    "2x2, stride 1": case((2, 4, 5, 19), (2, 2), (1, 1)),
    "3x3, stride 2, padding 1": case((2, 9, 9, 11), (3, 3), (2, 2), (1, 1)),
    "3x3, stride 1, padding 1": case((1, 8, 13, 6), (3, 3), (1, 1), (1, 1), K=4),
    "3x3, stride 2, ceil": case((2, 7, 8, 10), (3, 3), (2, 2), ceil=True),
    "3x3, stride 2, padding 1, ceil": case((1, 2, 8, 7), (3, 3), (2, 2), (1, 1), ceil=True),
    "3x2, stride 1x2": case((2, 4, 6, 9), (3, 2), (1, 2), (1, 0), K=1),
    "gaps": case((2, 5, 11, 12), (2, 2), (3, 4)),
    "1x1": case((1, 3, 4, 7), (1, 1)),
    "1x1 with gaps": case((1, 3, 5, 7), (1, 1), (2, 2)),
    "one channel": case((3, 1, 6, 9), (2, 2), K=4),
    "one window": case((3, 33, 4, 4), (4, 4)),
    "one row": case((2, 6, 1, 40), (1, 3), (1, 2), (0, 1)),
    "global": case((2, 16, 7, 7), (7, 7), K=4),
    "16x16": case((1, 3, 20, 33), (16, 16), (4, 8), (8, 8)),
    "5x5, stride 2, tall": case((1, 2, 60, 5), (5, 5), (2, 2), (2, 2)),
    "many channels": case((1, 130, 4, 6), (2, 2), K=7),
}


@pytest.mark.parametrize("name", CASES)
def test_case_table(name):
    compare(CASES[name])


@pytest.mark.parametrize("scale", [1.0, 0.3, -0.7, 0.0, "each"])
def test_scale(scale):
    for shape, *sizes in (((2, 5, 6, 9), (2, 2)), ((1, 8, 7, 7), (3, 3), (2, 2), (1, 1))):
        compare(case(shape, *sizes, scale=scale, K=3))


@pytest.mark.parametrize("name", ["2x2, many lanes", "2x2, ceil", "3x3, stride 1, padding 1", "16x16"])
def test_a_scale_for_each_channel(name):
    p = CASES[name]
    scale = randn(p.X.shape[1], seed=3)
    scale[::3] = 0
    for s in (scale, (100 * scale).float().double()):  # the second is solved the tight way
        compare(p._replace(scale=s), tol.KERNEL_HARD)
    wide = (10 ** (7 * rand(p.X.shape[1], seed=4) - 5)).float().double()
    compare(p._replace(scale=wide), tol.KERNEL_HARD)


@each_format
def test_equal_scales_are_one_scale(memory_format):
    p = case((2, 5, 6, 9), (2, 2), K=3).to(torch.float64, memory_format)
    one, each = (solved(p._replace(scale=torch.full((n,), -0.6).double()), fused) for n in (1, 5))
    each["scale"] = each["scale"].sum(0, keepdim=True)
    for name, g in one.items():
        torch.testing.assert_close(each[name], g, rtol=tol.F64_GRADIENT, atol=tol.F64_GRADIENT)


@each_format
def test_scale_zero_is_the_mean(memory_format):
    """And of the weights then, no derivative is left, not even rounding."""
    p = case((2, 5, 6, 8), (2, 2), scale=0.0, K=3).to(torch.float32, memory_format)
    got = solved(p, fused)
    torch.testing.assert_close(got["value"], F.avg_pool2d(p.X, 2), rtol=tol.F32, atol=tol.F32)
    assert (got["weights"] == 0).all()
    assert got["scale"].abs() > 0.1


@pytest.mark.parametrize("K", [1, 2, 4, 33])
def test_modules(K):
    compare(case((1, 6, 6, 10), (2, 2), K=K))
    compare(case((1, 6, 7, 9), (3, 3), (2, 2), (1, 1), K=K))


def test_equal_alpha0_share_an_exponential():
    p = case((1, 6, 6, 10), (2, 2), K=4)
    for alpha0 in ([0.5] * 4, [0.5, 0.5, 0.8, 0.8], [0.5, 0.8, 0.5, 0.5]):
        p.weights[0] = torch.tensor(alpha0)
        compare(p)


def test_more_modules_than_are_kept():
    """K exponentials of an entry are kept for the way back while they fit in cache; here they do not."""
    compare(case((1, 40, 4, 8), (2, 2), K=40))


def test_windows_larger_than_a_cache():
    compare(case((1, 300, 16, 16), (16, 16), K=2), tol.WINDOW_LARGE)


INPUTS = {
    "offset": lambda X: (X + 1e4).float().double(),
    "large": lambda X: (1e3 * X).float().double(),
    "tiny": lambda X: (1e-4 * X).float().double(),
    "equal": lambda X: torch.full_like(X, 0.5),
    "relu": lambda X: X.relu(),
    "channels apart": lambda X: (X + 100 * torch.arange(X.shape[1])[:, None, None]).float().double(),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name):
    for p in (case((2, 5, 6, 9), (2, 2), K=3), case((1, 9, 7, 7), (3, 3), (2, 2), (1, 1))):
        compare(p._replace(X=INPUTS[name](p.X)), tol.KERNEL_HARD)


@pytest.mark.parametrize("alpha0", [0.1, 0.03, 0.01])
def test_small_alpha0(alpha0):
    """Some windows of a tile are solved the tight way and some are not."""
    for p in (case((2, 5, 6, 20), (2, 2), K=4), case((1, 9, 7, 7), (3, 3), (2, 2), (1, 1), K=2)):
        p.weights[0] = (alpha0 * p.weights[0]).float().double()
        compare(p, tol.KERNEL_HARD)


@pytest.mark.parametrize("times", [1.0, 1e4])
@each_format
def test_every_cell_of_weights(times, memory_format):
    """alpha0 x (alpha1 = alpha2) in 1e-5 .. 1e4 in float32: finite, a mean of the window, dX of the right size.

    That last one where float32 has a digit left of X / alpha0: not so for 2e4 / 1e-5, in the reference either.
    """
    p = case((1, 6, 6, 10), (2, 2), K=4, scale=1.0)
    p = p._replace(X=(times * p.X).float().double())
    least, most = -F.max_pool2d(-p.X, 2), F.max_pool2d(p.X, 2)
    width = float(p.X.max() - p.X.min())
    for alpha0 in DECADES:
        for alpha12 in DECADES:
            q = p._replace(weights=torch.tensor([[alpha0] * 4, *([[alpha12] * 4] * 2)]).double())
            got, want = solved(q.to(torch.float32, memory_format), fused), solved(q, reference)
            where = (alpha0, alpha12)
            for name, g in got.items():
                assert g.isfinite().all(), (name, where)
            assert (got["value"] >= least - tol.F32 * width).all(), where
            assert (got["value"] <= most + tol.F32 * width).all(), where
            if times / alpha0 * torch.finfo(torch.float32).eps < 1:
                assert (got["X"] - want["X"]).abs().max() <= want["X"].abs().max(), where


@each_format
def test_half_precision_is_computed_in_float32(memory_format):
    p = case((2, 5, 6, 8), (2, 2))
    for dtype, most in ((torch.float16, tol.F16), (torch.bfloat16, tol.BF16)):
        X = p.X.to(dtype).contiguous(memory_format=memory_format)
        y = windows.pool(X, p.weights.float(), *p[2:])
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), reference(p), rtol=most, atol=most)


def test_gradcheck():
    for p in (
        case((1, 3, 4, 6), (2, 2), scale=0.8),
        case((1, 2, 5, 5), (3, 3), (2, 2), (1, 1), scale=-1.2, K=1),
        case((2, 2, 3, 4), (2, 2), (1, 1), scale=1.0),
        case((1, 3, 4, 6), (2, 2), scale="each"),
    ):
        small = p._replace(weights=p.weights * torch.tensor([[0.01], [1], [1]]))
        for q in (p, small):
            assert q.scale is not None
            inputs = [t.clone().requires_grad_() for t in (q.X, q.weights, q.scale)]
            assert gradcheck(lambda X, w, s, q=q: windows.pool(X, w, s, *q[3:]), inputs)


def test_in_every_instruction_set(isa):
    for name in ("2x2", "2x2, many lanes", "2x2, ceil", "3x3, stride 1, padding 1", "5x5, stride 2, tall"):
        compare(CASES[name])
    p = case((2, 5, 6, 20), (2, 2), K=4)
    p.weights[0] *= 0.03
    compare(p, tol.KERNEL_HARD)
    compare(case((2, 5, 6, 20), (2, 2), scale="each"))
    assert library.isa() == isa


# --- what must not matter


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


BATCHES = {
    "many bands": case((2, 3, 150, 40), (2, 2), scale=1.0),
    "bands that overlap": case((2, 3, 90, 60), (5, 3), (2, 1), (2, 1), scale=1.0),
    "many images": case((40, 3, 6, 6), (3, 3), (1, 1), (1, 1)),
    "a scale for each channel": case((40, 3, 30, 6), (3, 3), (1, 1), (1, 1), scale="each"),
}


@pytest.mark.parametrize("name", BATCHES)
@each_format
def test_bits_do_not_depend_on_the_number_of_threads(torch_threads, memory_format, name):
    p = BATCHES[name].to(torch.float32, memory_format)
    results = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        results.append(solved(p, fused))
    for other in results[1:]:
        assert equal(results[0], other) == []


@pytest.mark.parametrize("name", ["2x2, many lanes", "3x3, stride 1, padding 1", "16x16"])
@each_dtype
@each_format
def test_bits_do_not_depend_on_batch_mates(memory_format, dtype, name):
    p = CASES[name].to(dtype, memory_format)
    p.weights[0] *= 0.05  # so that some windows are solved the tight way
    X = torch.cat([rand(1, *p.X.shape[1:], seed=5).to(dtype), p.X, 30 * p.X]).contiguous(
        memory_format=memory_format
    )
    together = p._replace(X=X)
    B = len(p.X)
    y = fused(together)
    assert torch.equal(y[1 : 1 + B], fused(p))
    dout = randn(*y.shape, seed=3).to(dtype)
    grads = []
    for q, d in ((together, dout), (p, dout[1 : 1 + B])):
        leaf = q.X.clone().requires_grad_()
        grads.append(torch.autograd.grad(fused(q._replace(X=leaf)), leaf, d)[0])
    assert torch.equal(grads[0][1 : 1 + B], grads[1])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@each_format
def test_a_spoilt_window_shows_and_spoils_no_other(memory_format, bad):
    """Even of its own tile: for any alpha0, the other windows keep their bits."""
    p = case((2, 5, 8, 12), (2, 2), K=3).to(torch.float32, memory_format)
    for times in (1.0, 0.03):
        p.weights[0] *= times
        X = p.X.clone()
        X[1, 2, 5, 7] = bad  # in window (2, 3)
        clean, spoilt = fused(p), fused(p._replace(X=X))
        mine = torch.zeros_like(clean, dtype=torch.bool)
        mine[1, :, 2, 3] = True
        assert not spoilt[mine].isfinite().any()
        assert torch.equal(spoilt[~mine], clean[~mine])
        leaf = X.requires_grad_()
        (dX,) = torch.autograd.grad(fused(p._replace(X=leaf)).sum(), leaf)
        inside = torch.zeros_like(dX, dtype=torch.bool)
        inside[1, :, 4:6, 6:8] = True
        assert dX[~inside].isfinite().all()
        assert not dX[inside].isfinite().all()


@each_format
def test_a_tight_neighbour_does_not_matter(memory_format):
    """One window of a tile needs the tight way: the bits of the others are those they have without it."""
    p = case((1, 5, 2, 32), (2, 2), K=3).to(torch.float32, memory_format)
    X = p.X.clone()
    X[:, :, :, 6:8] *= 1e3
    before, after = solved(p, fused), solved(p._replace(X=X), fused)
    others = [i for i in range(16) if i != 3]
    assert torch.equal(before["value"][..., others], after["value"][..., others])
    assert not torch.equal(before["value"], after["value"])
    columns = [i for i in range(32) if i not in (6, 7)]
    assert torch.equal(before["X"][..., columns], after["X"][..., columns])


def test_other_strides_are_read_right():
    p = case((2, 5, 6, 8), (2, 2))
    want = fused(p)
    for X in (
        p.X.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1),
        torch.cat([p.X, p.X], 1)[:, :5],
        torch.cat([p.X, p.X], 3)[..., :8],
        p.X.transpose(2, 3).contiguous().transpose(2, 3),
        torch._neg_view(-p.X),
    ):
        assert torch.equal(fused(p._replace(X=X)), want)
    constant = case((2, 5, 6, 8), (2, 2))._replace(X=torch.ones(1, 1, 1, 1).double().expand(2, 5, 6, 8))
    assert (fused(constant) == 1).all()


def test_derivatives_of_what_follows():
    """Autograd hands over derivatives by the output with any strides; `sum` gives one number in all places."""
    p = case((2, 5, 6, 8), (2, 2))
    for memory_format in FORMATS:
        X = p.X.contiguous(memory_format=memory_format).requires_grad_()
        for function in (
            lambda y: y.sum(),
            lambda y: (y.transpose(1, 3) * randn(2, 4, 3, 5)).sum(),
            lambda y: y[:, 1].mean(),
        ):
            got, want = (
                torch.autograd.grad(function(pool(p._replace(X=X))), X)[0] for pool in (fused, reference)
            )
            torch.testing.assert_close(got, want, rtol=0.0, atol=tol.F64)


def test_no_images():
    p = case((1, 5, 6, 8), (2, 2), scale=1.0)
    got = solved(p._replace(X=p.X[:0]), fused)
    assert got["value"].shape == (0, 5, 3, 4)
    assert (got["weights"] == 0).all()
    assert got["scale"] == 0


def test_a_window_in_the_padding_gives_zeros():
    """Torch does not allow such a padding, the kernel need not care."""
    p = case((2, 5, 3, 3), (2, 2), (2, 2), (4, 4))
    assert p.output_size == (5, 5)
    got = solved(p, fused)
    inside = got["value"][:, :, 2:4, 2:4]
    assert torch.equal(
        inside, fused(p._replace(padding=(0, 0), output_size=output_size((3, 3), (2, 2), (2, 2), (0, 0), True)))
    )
    assert got["value"].abs().sum() == inside.abs().sum()


# --- torch


def operands(memory_format, *, grad=True, scale=0.8):
    p = case((2, 3, 5, 6), (3, 3), (2, 2), (1, 1), scale=scale).to(torch.float64, memory_format)
    tensors = [t.requires_grad_(grad) if t is not None else None for t in p[:3]]
    return (*tensors, *(list(pair) for pair in p[3:]))


@pytest.mark.parametrize("scale", [0.8, "each", None])
@each_format
def test_opcheck(memory_format, scale):
    torch.library.opcheck(torch.ops.uotpool.window.default, operands(memory_format, scale=scale))
    given = operands(memory_format, grad=False, scale=scale)
    dout = randn(2, 3, 3, 3).contiguous(memory_format=memory_format)
    for wanted in ([True, True, scale is not None], [False, True, False]):
        torch.library.opcheck(torch.ops.uotpool.window_backward.default, (dout, *given, wanted))


@each_format
def test_operator_and_function_are_one(memory_format, monkeypatch):
    p = case((2, 5, 6, 8), (2, 2), scale="each").to(torch.float32, memory_format)
    want = solved(p, fused)
    monkeypatch.setattr(windows, "all_eager", lambda X: False)
    assert equal(want, solved(p, fused)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        lambda g: (g[0].float(), *g[1:]),
        lambda g: (g[0][0], *g[1:]),
        lambda g: (g[0], g[1][:2], *g[2:]),
        lambda g: (g[0], g[1], g[2].repeat(2), *g[3:]),
        lambda g: (*g[:3], [2], *g[4:]),
        lambda g: (*g[:6], [-1, 2]),
    ],
)
def test_operator_refuses(wrong):
    with pytest.raises(ValueError, match="uotpool::window: "):
        torch.ops.uotpool.window(*wrong(operands(torch.contiguous_format, grad=False)))


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@each_format
def test_compiled_graph_holds_the_operators(dynamo, memory_format):
    graphs = []

    def keep(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    p = case((2, 3, 6, 8), (2, 2), scale=0.8).to(torch.float64, memory_format)

    def pool(X, weights, scale):
        return windows.pool(X, weights, scale, *p[3:])

    compiled = torch.compile(pool, fullgraph=True, backend=aot_autograd(fw_compiler=keep))
    got, want = (solved(p, lambda q, run=run: run(*q[:3])) for run in (compiled, pool))
    assert equal(got, want) == []
    assert torch.ops.uotpool.window.default in graphs[0]
    assert torch.ops.uotpool.window_backward.default in graphs[1]


def test_export():
    class Model(torch.nn.Module):
        def forward(self, X, weights):
            return windows.pool(X.relu(), weights, None, (2, 2), (2, 2), (0, 0), (3, 4))

    p = case((2, 3, 6, 8), (2, 2))
    program = torch.export.export(Model(), (p.X, p.weights))
    assert torch.ops.uotpool.window.default in [node.target for node in program.graph.nodes]
    assert torch.equal(program.module()(p.X, p.weights), Model()(p.X, p.weights))


def test_second_derivative_names_the_reference():
    p = case((1, 3, 4, 4), (2, 2))
    X = p.X.requires_grad_()
    (dX,) = torch.autograd.grad(fused(p._replace(X=X)).square().sum(), X, create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), X)
    y = torch.ops.uotpool.window(*p._replace(X=X))
    (dX,) = torch.autograd.grad(y.square().sum(), X, create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), X)


def test_batched_derivatives():
    p = case((1, 3, 4, 4), (2, 2))
    X = p.X.requires_grad_()
    y = fused(p._replace(X=X))
    douts = randn(3, *y.shape)
    (got,) = torch.autograd.grad(y, X, douts, is_grads_batched=True, retain_graph=True)
    for g, d in zip(got, douts, strict=True):
        assert torch.equal(g, torch.autograd.grad(y, X, d, retain_graph=True)[0])


# --- the C interface

OUTPUTS = ("out", "dX", "dweights", "dscale")
LARGE = 2**62


class Raw:
    """A call, sizes and tensors by name; outputs are full of 7."""

    def __init__(self, dtype: torch.dtype = torch.float64, scale: int = 1) -> None:
        p = CASES["3x3, stride 2, padding 1"]._replace(scale=torch.full((scale,), 0.8)).to(dtype)
        assert p.scale is not None
        (kh, kw), (sh, sw), (ph, pw), (oh, ow) = p[3:]
        B, C, H, W = p.X.shape
        self.sizes = {"dtype": int(dtype == torch.float64), "channels_last": 0, "threads": 1}
        self.sizes |= {"K": p.weights.shape[1], "B": B, "C": C, "H": H, "W": W, "out_h": oh, "out_w": ow}
        self.sizes |= {"kernel_h": kh, "kernel_w": kw, "stride_h": sh, "stride_w": sw}
        self.sizes |= {"padding_h": ph, "padding_w": pw, "scale_length": scale}
        out = torch.full((B, C, oh, ow), 7.0, dtype=dtype)
        self.arrays = {
            "X": p.X,
            "weights": p.weights,
            "scale": p.scale,
            "dout": torch.ones_like(out),
            "out": out,
        }
        for name in ("X", "weights", "scale"):
            self.arrays[f"d{name}"] = torch.full_like(self.arrays[name], 7.0)

    def run(self, backward: bool, **other) -> int:
        values = {name: t.data_ptr() for name, t in self.arrays.items()}
        call = library.WindowCall(**{**self.sizes, **values, **other})
        return (NATIVE.uotpool_window_backward if backward else NATIVE.uotpool_window_forward)(call)

    def refused(self, status: int, ways=(False, True), **other) -> None:
        for backward in ways:
            assert self.run(backward, **other) == status, other
        for name in OUTPUTS:
            assert (self.arrays[name] == 7).all(), name


def test_what_is_right_is_not_refused():
    raw = Raw()
    assert raw.run(False) == library.OK
    assert raw.run(True) == library.OK
    for name in OUTPUTS:
        assert not (raw.arrays[name] == 7).any()
    assert raw.run(False, dout=None, dX=None, dweights=None, dscale=None) == library.OK
    assert raw.run(True, out=None, dX=None, dweights=None, dscale=None) == library.OK
    assert raw.run(True, scale=None, dscale=None, scale_length=0) == library.OK
    each = Raw(scale=raw.sizes["C"])
    assert each.run(False) == library.OK
    assert each.run(True) == library.OK
    assert each.run(True, dscale=None) == library.OK
    assert not (each.arrays["dscale"] == 7).any()
    assert raw.run(False, B=0, X=None, out=None) == library.OK
    assert raw.run(False, out_h=0, out=None) == library.OK


WRONG = [
    *(("dtype", v) for v in (-1, 2, LARGE)),
    *(("channels_last", v) for v in (-1, 2, LARGE)),
    *(("K", v) for v in (0, -1, LARGE, -LARGE)),
    *(("threads", v) for v in (0, -1, 4097, LARGE)),
    ("B", -1),
    ("B", LARGE),
    *((n, v) for n in ("C", "H", "W") for v in (0, -1, LARGE, -LARGE, 2**63 - 1)),
    *((n, v) for n in ("kernel_h", "kernel_w", "stride_h", "stride_w") for v in (0, -1, LARGE, 2**63 - 1)),
    *((n, v) for n in ("padding_h", "padding_w", "out_h", "out_w") for v in (-1, LARGE, -LARGE)),
    *(("scale_length", v) for v in (-1, 0, 2, LARGE, -LARGE)),  # 0: there is a scale
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_codes_and_sizes(name, value):
    Raw().refused(library.BAD_ARGUMENT, **{name: value})


@pytest.mark.parametrize(
    "sizes",
    [
        {"B": 2**31, "C": 2**31},
        {"H": 2**31, "W": 2**31, "B": 2**31},
        {"H": 2**31, "W": 2**31, "kernel_h": 2**31, "kernel_w": 2**31},
        {"B": 2**31, "out_h": 2**31, "out_w": 1},
        {"out_h": 2**31, "out_w": 2**31},
    ],
    ids=str,
)
def test_products_beyond_64_bits(sizes):
    Raw().refused(library.BAD_ARGUMENT, **sizes)


def test_null_and_misaligned():
    assert NATIVE.uotpool_window_forward(None) == library.NULL_POINTER
    assert NATIVE.uotpool_window_backward(None) == library.NULL_POINTER
    for dtype in (torch.float32, torch.float64):
        raw = Raw(dtype)
        raw.refused(library.NULL_POINTER, X=None)
        raw.refused(library.NULL_POINTER, weights=None)
        raw.refused(library.NULL_POINTER, (False,), out=None)
        raw.refused(library.NULL_POINTER, (True,), dout=None)
        raw.refused(library.NULL_POINTER, scale=None)
        raw.refused(library.BAD_ARGUMENT, scale=None, scale_length=0)  # the derivative by what is not there
        for name, t in raw.arrays.items():
            for offset in {1, t.element_size() // 2, t.element_size() - 1}:
                raw.refused(library.MISALIGNED, **{name: t.data_ptr() + offset})


def test_any_window_stays_in_the_image():
    """Sizes that no layer would ask for: the sanitizers watch, and all results are of the image or 0."""
    for more in (
        {"kernel_h": 2**31, "kernel_w": 2**31},
        {"stride_h": 2**31, "stride_w": 2**31},
        {"padding_h": 2**31},
        {"padding_w": 100, "kernel_w": 300},
        {"kernel_h": 1, "stride_h": 7, "padding_h": 3},
    ):
        raw = Raw()
        assert raw.run(False, **more) == library.OK
        assert raw.run(True, **more) == library.OK
        for name in OUTPUTS:
            assert raw.arrays[name].isfinite().all(), (name, more)
        assert raw.arrays["out"].abs().max() <= 2
