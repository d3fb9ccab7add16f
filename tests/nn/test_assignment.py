"""Aggregation by clusters: limits of the plan, the dustbin, the token, every layout, other computations."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests import tolerances as tol
from uotpool import BregmanADMM, Learned, Problem, Sinkhorn, UOTAssignment
from uotpool.zoo import build

D, M, L = 5, 3, 4
PTR = torch.tensor([0, 6, 6, 7, 16])


def close(got, want, bound=tol.F64):
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


def layer(seed=0, **options):
    torch.manual_seed(seed)
    return UOTAssignment(D, M, L, **options).double()


def samples(*size):
    return torch.randn(*size, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("solver", [Sinkhorn(), BregmanADMM(), BregmanADMM("quadratic")], ids=str)
def test_it_is_the_plan_of_the_scores_and_a_sum_of_values(solver):
    """Written out for each set, with the plan from the public function."""
    rho = 1.0 if solver.uses_rho else None
    pool = layer(solver=solver, rho=rho, alpha1=0.5, dustbin_share=0.25)
    X = samples(2, 7)
    p0 = torch.tensor([0.25, 0.25, 0.25, 0.25], dtype=X.dtype)
    S = torch.cat([pool.score(X), pool.dustbin.expand(2, 7, 1)], -1)
    P = Problem(S, alpha0=1.0, alpha1=0.5, alpha2=1.0, rho=rho, p0=p0).plan(solver)
    close(pool.plan(X), P)
    for b in range(2):
        V = torch.zeros(M, L, dtype=X.dtype)
        for n in range(7):
            V += torch.outer(P[b, n, :M], pool.value(X[b, n]))
        V = V / V.norm(dim=1, keepdim=True)
        close(pool(X)[b], V.flatten() / V.norm())


def test_salad_has_the_marginals_of_the_paper():
    """Samples hand out 1 / N and clusters take 1 / N, the dustbin the rest; small sets have shares."""
    torch.manual_seed(0)
    pool = build("salad", D, clusters=M, value_dim=L, K=200).double()
    P = pool.plan(samples(2, 10))
    close(P.sum(2), torch.full((2, 10), 0.1, dtype=P.dtype), tol.F32)
    close(P.sum(1), torch.tensor([[0.1, 0.1, 0.1, 0.7]] * 2, dtype=P.dtype), tol.F32)
    small = pool.plan(samples(1, 2))
    close(small.sum(1), torch.full((1, 4), 0.25, dtype=P.dtype), tol.F32)
    assert pool(samples(1, 2)).isfinite().all()


def test_every_layout_agrees():
    pool = layer(token=2)
    X, token = samples(16), samples(4)
    index = torch.repeat_interleave(torch.arange(4), PTR.diff())
    y = pool(X, ptr=PTR, token=token)
    close(pool(X, index, dim_size=4, token=token), y)
    mask = torch.arange(9) < PTR.diff()[:, None]
    dense = torch.full((4, 9, D), torch.nan, dtype=X.dtype)
    dense[mask] = X
    close(pool(dense, mask=mask, token=token), y)
    P = pool.plan(dense, mask=mask)
    close(P[mask], pool.plan(X, ptr=PTR))
    assert (P[~mask] == 0).all()
    nested = torch.nested.nested_tensor_from_jagged(X, PTR)
    close(pool(nested, token=token), y)
    assert pool.plan(nested).is_nested
    for b, (begin, end) in enumerate(zip(PTR[:-1].tolist(), PTR[1:].tolist(), strict=True)):
        if end > begin:
            close(pool(X[begin:end], token=token[b : b + 1])[0], y[b])
    close(y.norm(dim=1), torch.ones(4, dtype=y.dtype))


def test_the_token_comes_first_and_weighs_as_much_as_a_cluster():
    pool, X, token = layer(token=2), samples(2, 6), samples(2)
    assert "clusters=3, value_dim=4, token=2" in repr(pool)
    y = pool(X, token=token)
    assert y.shape == (2, pool.out_dim) == (2, 2 + M * L)
    pieces = [y[:, :2], *y[:, 2:].reshape(2, M, L).unbind(1)]
    for piece in pieces:
        close(piece.norm(dim=1), torch.full((2,), (1 / (M + 1)) ** 0.5, dtype=y.dtype))
    for pool_, given, message in (
        (pool, None, r"token: expected a tensor \(2, 5\) for a layer with token=2, got None"),
        (layer(), token, "token: expected None for a layer with token=0"),
        (pool, samples(3), r"token: expected a floating tensor of shape \(2, 5\)"),
    ):
        with pytest.raises(ValueError, match=message):
            pool_(X, token=given)


def test_a_sample_that_belongs_nowhere_goes_to_the_dustbin():
    torch.manual_seed(0)
    score = nn.Linear(D, M, bias=False).double()
    pool = UOTAssignment(D, M, L, score=score, dustbin_share=0.2, alpha1=0.1).double()
    X = samples(1, 6)
    with torch.no_grad():
        X[0, 0] = -30 * torch.linalg.pinv(score.weight).sum(1)  # all of its scores are -30
    P = pool.plan(X)[0].detach()
    assert float(P[0, :M].sum()) < 1e-6 * float(P[0, M])
    without = layer(dustbin=False)
    assert without.plan(X).shape == (1, 6, M)
    assert without(X).shape == (1, M * L)


@pytest.mark.parametrize("hidden", [None, 7])
def test_centres_are_taken_off_the_values(hidden):
    pool = layer(hidden=hidden)
    with torch.no_grad():
        pool.centres.normal_()
    X = samples(2, 6)
    mask = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
    for b, n in enumerate((6, 2)):
        P, v = pool.plan(X[b, :n]), pool.value(X[b, :n])
        V = torch.stack([sum(P[i, m] * (v[i] - pool.centres[m]) for i in range(n)) for m in range(M)])
        V = V / V.norm(dim=1, keepdim=True)
        close(pool(X, mask=mask)[b], V.flatten() / V.norm())
    assert pool.centres.shape == (M, L)
    assert layer(centred=False).centres is None


@pytest.mark.parametrize("alpha0", [1.0, 0.2])
def test_fit_starts_from_clusters(alpha0):
    """Scores prefer the nearest centre, as those of NetVLAD; the best score is 0 on average."""
    torch.manual_seed(0)
    true = 5 * torch.randn(M, D, dtype=torch.float64)
    rows = true.repeat(30, 1) + 0.1 * torch.randn(30 * M, D, dtype=torch.float64)
    pool = layer(alpha0=alpha0).fit(rows)
    with torch.no_grad():
        S = pool.score(rows)
        best = S.argmax(1).reshape(30, M)
        assert (best == best[0]).all()
        assert sorted(best[0].tolist()) == list(range(M))
        close(S.amax(1).mean(), torch.zeros((), dtype=S.dtype), tol.F64_GRADIENT)
        two = S.topk(2).values / alpha0
        close((two[:, 0] - two[:, 1]).mean().exp(), torch.tensor(100.0, dtype=S.dtype), tol.F64_GRADIENT)
        # Centres of clusters lie on their values.
        assert float(torch.cdist(pool.centres, pool.value(true)).amin(1).max()) < 0.3
        assert (pool.plan(rows)[:, :M].sum(0) > 0.01).all()
    fitted = pool.score.weight.clone()
    pool.reset_parameters()
    assert not torch.equal(pool.score.weight, fitted)
    assert not pool.centres.any()


def test_gradients_reach_everything_and_are_right():
    pool = layer(seed=3, alpha0=Learned(), alpha1=Learned(1.0), alpha2=Learned(1.0), token=2)
    X, token = samples(2, 6).requires_grad_(), samples(2).requires_grad_()
    pool(X, token=token).square().cumsum(1).sum().backward()
    assert [name for name, p in pool.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []
    reference = layer(alpha1=0.7, impl="reference")
    torch.autograd.gradcheck(reference, (samples(2, 4).requires_grad_(),))


def test_no_tensor_of_samples_by_clusters_by_values():
    """The largest tensor of a pass is that of hidden units, samples x D here."""

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **kwargs or {})
            if isinstance(out, torch.Tensor):
                self.numel = max(self.numel, out.numel())
            return out

    torch.manual_seed(0)
    pool = UOTAssignment(16, 8, 8)
    X = torch.randn(2, 50, 16, requires_grad=True)
    with Largest() as seen:
        pool(X).sum().backward()
    assert seen.numel == 2 * 50 * 16


def test_a_token_in_half_precision_and_under_autocast():
    """Whatever the dtype of X, of the parameters or of autocast, the descriptor is that of full precision."""
    pool, X, token = layer(token=2).float(), samples(2, 6).float(), samples(2).float()
    full = pool(X, token=token)
    bare = layer(dustbin=False).float()
    plan = bare.plan(X)
    close(pool(X.bfloat16(), token=token.bfloat16()).float(), full, tol.BF16)
    close(layer(token=2).bfloat16()(X, token=token), full, tol.BF16)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(pool(X, token=token), full)
        assert torch.equal(bare.plan(X), plan)
