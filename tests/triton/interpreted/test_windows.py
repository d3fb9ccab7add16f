"""Windows of images: value and all derivatives against the reference, float32, NaN, bits, and operators."""

from __future__ import annotations

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.kernels.harness import equal, randn
from tests.kernels.windows import Windows, case, off, reference, solved
from uotpool import UOTPool2d, explain_impl
from uotpool.backends import base
from uotpool.backends.triton import window_calls, windows
from uotpool.backends.triton.choice import MOST_WINDOW, window_tile

pytestmark = pytest.mark.usefixtures("poisoned_memory")
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
each_format = pytest.mark.parametrize("memory_format", FORMATS.values(), ids=FORMATS)


def fused(p: Windows) -> torch.Tensor:
    return windows.pool(p.X, p.weights, p.scale, base.Windows(*p[3:]))


# Channels around the widths of tiles; windows that overlap, leave gaps, end in the padding or lie in it.
CASES = {
    "2x2": case((2, 3, 6, 8), (2, 2), scale="each"),
    "one channel": case((1, 1, 4, 6), (2, 2), K=4, scale=-0.7),
    "37 channels": case((1, 37, 4, 4), (2, 2), K=1, scale="each"),
    "64 channels": case((1, 64, 2, 4), (2, 2), K=1),
    "130 channels": case((1, 130, 2, 4), (2, 2), K=1, scale="each"),
    "odd sizes": case((2, 3, 5, 7), (2, 2)),
    "ceil": case((1, 5, 5, 7), (2, 2), ceil=True, scale=0.3),
    "stride 1": case((1, 4, 3, 5), (2, 2), (1, 1), K=1, scale="each"),
    "3x3, stride 2, padding 1": case((1, 5, 7, 6), (3, 3), (2, 2), (1, 1), K=2, scale="each"),
    "3x3, four modules": case((1, 3, 4, 5), (3, 3), (1, 1), (1, 1), K=4),
    "3x2, stride 1x2": case((1, 4, 5, 7), (3, 2), (1, 2), (1, 0), K=1),
    "gaps": case((2, 3, 7, 9), (2, 2), (3, 4), scale=0.0),
    "1x1": case((1, 3, 3, 4), (1, 1), (2, 2)),
    "all of an image": case((2, 5, 3, 3), (3, 3), K=2),
    "a window in the padding": case((1, 2, 2, 2), (2, 2), (2, 2), (1, 1), ceil=True)._replace(
        output_size=(3, 3)
    ),
    "5x5, stride 2": case((1, 2, 9, 5), (5, 5), (2, 2), (2, 2), K=1),
}


@pytest.mark.parametrize("name", CASES)
@each_format
def test_case_table(name, memory_format):
    p = CASES[name].to(torch.float64, memory_format)
    assert windows.refuses(p.X.shape[1], p.kernel_size) == ""
    got, want = solved(p, fused), solved(CASES[name], reference)
    assert got["value"].is_contiguous(memory_format=memory_format)
    worst = off(got, want, p.weights)
    assert max(worst.values()) <= tol.F64, worst


def test_windows_without_positions_are_zero():
    y = fused(CASES["a window in the padding"])
    assert (y[..., 2, :] == 0).all()
    assert (y[..., :2, :2] != 0).any()


@pytest.mark.parametrize("zero", [1, 2])
def test_weights_of_0(zero):
    p = case((1, 4, 4, 4), (2, 2))
    p.weights[zero] = 0.0
    worst = off(solved(p, fused), solved(p, reference), p.weights)
    assert max(worst.values()) <= tol.F64, worst


SHAPES = {
    "unit": lambda X: X,
    "offset": lambda X: (X + 1e4).float().double(),
    "large": lambda X: (1e3 * X).float().double(),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("alpha0", [1e-5, 1e-2, 1e4])
@pytest.mark.parametrize("alpha12", [1e-5, 1.0, 1e4])
def test_float32_at_extreme_weights(shape, alpha0, alpha12):
    """Results are finite, and dX is as good as the reference's over some orders of channels."""
    p = case((1, 5, 4, 4), (2, 2), K=2)
    weights = torch.tensor([alpha0, alpha12, alpha12]).double()[:, None].expand(3, 2).contiguous()
    p = p._replace(
        X=SHAPES[shape]((p.X + 2) / 4), weights=weights
    )  # of the unit interval, as in test_stability
    dy = randn(1, 5, 2, 2, seed=3)

    def derivatives(q, pool, dy):
        leaves = [q.X.clone().requires_grad_(), q.weights.clone().requires_grad_()]
        y = pool(q._replace(X=leaves[0], weights=leaves[1]))
        return y, *torch.autograd.grad(y, leaves, dy.to(y.dtype))

    want = derivatives(p, reference, dy)[1]
    small = p.to(torch.float32)
    found = derivatives(small, fused, dy)
    assert all(t.isfinite().all() for t in found)
    errors = []
    for turn in range(5):
        turned = small._replace(X=small.X.roll(turn, 1))
        got = derivatives(turned, reference, dy.roll(turn, 1))[1].roll(-turn, 1)
        errors.append(float((got.double() - want).abs().max()))
    bound = max(2 * max(errors), tol.TRITON_F32 * float(want.abs().max()))
    assert float((found[1].double() - want).abs().max()) <= bound


@each_format
def test_half_precision_is_read_as_it_is(memory_format):
    """The results are those of the same numbers in float32, rounded."""
    found = []
    for half in (True, False):
        X = randn(1, 3, 4, 4).half().contiguous(memory_format=memory_format)
        p = case((1, 3, 4, 4), (2, 2), K=1).to(torch.float32)
        p = p._replace(X=(X if half else X.float()).requires_grad_())
        y = fused(p)
        (dX,) = torch.autograd.grad(y, p.X, torch.ones_like(y))
        assert y.dtype == dX.dtype == p.X.dtype
        found.append((y.detach().half(), dX.half()))
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["2x2", "stride 1"])
@each_format
def test_bits_of_an_image_alone_and_beside_one_that_is_not_finite(name, memory_format):
    p = CASES[name].to(torch.float32, memory_format)
    for bad in (torch.nan, -torch.inf):
        beside = torch.cat((p.X[:1], randn(*p.X[:1].shape, seed=9).float(), p.X[:1]))
        beside[1, 0, 1, 1] = bad
        batch = p._replace(X=beside.contiguous(memory_format=memory_format))
        dy = randn(1, *p.X.shape[1:2], *p.output_size, seed=5).float()
        found = []
        for q in (p._replace(X=p.X[:1].contiguous(memory_format=memory_format)), batch):
            q.X.requires_grad_()
            y = fused(q)
            found.append((y.detach(), torch.autograd.grad(y, q.X, dy.expand_as(y))[0]))
        for alone, together in zip(*found, strict=True):
            assert torch.equal(together[:1], alone)
            assert torch.equal(together[2:], alone)
        # Every channel of a window is NaN, but no other window.
        assert found[1][0][1].isnan().any(0).equal(found[1][0][1].isnan().all(0))
        assert found[1][0][1, 0, 0, 0].isnan()
        assert found[1][0][1].isfinite().any()
        assert found[1][1][1, :, 1, 1].isnan().all()


def test_offsets_of_64_bits(monkeypatch):
    """They are for more than 2^31 entries, and give the same."""
    p = CASES["stride 1"]
    want, geometry = solved(p, fused), window_calls._geometry
    wide = []

    def widened(*given):
        found = geometry(*given) | {"INDEX": window_calls.tl.int64}
        wide.append(found)
        return found

    monkeypatch.setattr(window_calls, "_geometry", widened)
    assert equal(solved(p, fused), want) == []
    assert len(wide) == 2
    many = p._replace(X=torch.empty(1, 1, device="meta").expand(2**15, 2**16)[None, None])
    assert geometry(many, (0,))["INDEX"] == window_calls.tl.int64
    assert geometry(p, (0,))["INDEX"] == window_calls.tl.int32


def test_derivatives_that_are_not_wanted():
    p = windows.WindowArguments(*CASES["stride 1"])
    out, rows = window_calls.forward(p)
    assert rows.numel() == p.K * 4 * out[:, 0].numel()  # all that is kept between the passes
    dout = randn(*out.shape, seed=7)
    every = window_calls.backward(dout, p, rows, [True] * 3)
    for i in range(3):
        alone = window_calls.backward(dout, p, rows, [j == i for j in range(3)])
        assert torch.equal(alone[i], every[i])
        assert [d is None for d in alone] == [j != i for j in range(3)]
    again, nothing = window_calls.forward(p, save=False)
    assert nothing is None
    assert torch.equal(again, out)


def test_no_images():
    p = case((1, 3, 4, 4), (2, 2), scale="each")
    got = solved(p._replace(X=p.X[:0]), fused)
    assert got["value"].shape == (0, 3, 2, 2)
    assert all((got[name] == 0).all() for name in ("X", "weights", "scale"))


def operands(grad=True):
    p = case((1, 2, 3, 3), (2, 2), (1, 1), K=1, scale="each")
    return *(t.clone().requires_grad_(grad) for t in p[:3]), *p[3:]


def test_opcheck():
    torch.library.opcheck(torch.ops.uotpool.triton_window.default, (*operands(), True))
    given = operands(grad=False)
    out, rows = torch.ops.uotpool.triton_window(*given, True)
    torch.library.opcheck(
        torch.ops.uotpool.triton_window_backward.default,
        (torch.ones_like(out), rows, *given, [True, False, True]),
    )


def test_operators_refuse_what_does_not_fit():
    given = operands(grad=False)
    for i, other in ((0, given[0].float()), (0, given[0][0]), (1, given[1][:2]), (2, randn(3)), (3, (99, 99))):
        with pytest.raises(ValueError, match="uotpool::triton_window"):
            torch.ops.uotpool.triton_window(*given[:i], other, *given[i + 1 :], True)
    out, rows = torch.ops.uotpool.triton_window(*given, True)
    with pytest.raises(ValueError, match="dout has not the shape"):
        torch.ops.uotpool.triton_window_backward(out[:, :1], rows, *given, [True] * 3)
    with pytest.raises(ValueError, match="expected what triton_window saved"):
        torch.ops.uotpool.triton_window_backward(out, rows[:, :1], *given, [True] * 3)


def test_operator_and_function_are_one(monkeypatch):
    p = CASES["stride 1"]
    want = solved(p, fused)
    monkeypatch.setattr(windows, "all_eager", lambda tensors: False)
    assert equal(want, solved(p, fused)) == []


def test_second_derivatives_and_transforms_are_refused():
    p = CASES["2x2"]
    X = p.X.clone().requires_grad_()
    (dX,) = torch.autograd.grad(fused(p._replace(X=X)).square().sum(), X, create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), X)
    layer = UOTPool2d(3, 2, K=1, impl="triton").double()
    with (
        uotpool.check(False),
        pytest.raises(ValueError, match=r'for impl="triton" a tensor outside torch\.func'),
    ):
        torch.func.grad(lambda x: layer(x).sum())(p.X)


def test_layer_compiled_and_exported():
    torch._dynamo.reset()
    layer = UOTPool2d(3, 2, K=1, impl="triton").double()
    plain = UOTPool2d(3, 2, K=1, impl="reference").double()
    plain.load_state_dict(layer.state_dict())
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (4, 6):
        X = randn(1, 3, size, 5).requires_grad_()
        found = []
        for model in (plain, layer, compiled):
            y = model(X)
            found.append([y.detach(), *torch.autograd.grad(y.sin().sum(), [X, *model.parameters()])])
        for want, *others in zip(*found, strict=True):
            for got in others:
                torch.testing.assert_close(got, want, rtol=tol.F64, atol=tol.F64)
    program = torch.export.export(layer, (X.detach(),))
    assert "uotpool.triton_window" in str(program.graph)
    assert torch.equal(program.module()(X.detach()), layer(X.detach()))
    torch._dynamo.reset()


def test_what_the_kernel_takes():
    """Windows that do not fit the registers are gathered, and solved as sets."""
    layer = UOTPool2d(65, 8, K=1, impl="triton").double()
    X = randn(1, 65, 8, 8)
    want = layer.pool(X.flatten(2).transpose(1, 2).contiguous())
    torch.testing.assert_close(layer(X).flatten(1), want, rtol=tol.F64, atol=tol.F64)
    assert windows.refuses(65, (8, 8)) == (
        "its kernel for windows takes at most 4096 entries, channels and positions padded to powers of two, "
        "got 65 channels of 8 x 8"
    )
    assert windows.refuses(64, (8, 8)) == ""
    assert explain_impl(X, kernel_size=(8, 8)) == "cpu"
    wide = torch.zeros(1, 2, 2, 2048).double()  # the width of an image is no number of features
    assert UOTPool2d(2, 2, K=1, impl="triton").double()(wide).shape == (1, 2, 1, 1024)


def test_tiles_hold_a_window():
    for C in (1, 3, 37, 64, 256, 1024):
        for positions in (1, 4, 9, 16, 25, 49):
            for itemsize in (4, 8):
                for last in (False, True):
                    N, G, P, Q, warps = window_tile(C, positions, itemsize, last)
                    if N * C > MOST_WINDOW:
                        continue
                    assert N >= positions
                    assert G * (Q if last else P) >= C
                    assert N * G * P * Q >= 32 * warps
                    assert 1 <= warps <= 16
