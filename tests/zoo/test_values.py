"""Every pooling of the zoo against a computation of its own: loops over one set, PyG, POT, numpy, scipy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.special import logsumexp

from tests import tolerances as tol
from tests.beside_cpu import import_timm
from tests.zoo.cases import NAMES, SMALL, batch, call, small
from uotpool import UOTPooling, zoo
from uotpool.sets import DenseSets
from uotpool.zoo.transport import transport_plan

pytest.importorskip("torch_geometric")
from torch_geometric.nn import DenseGCNConv, dense_diff_pool

from tests.spelling import classic

D = 4


def close(got, want, bound=tol.F64):
    want = torch.as_tensor(want)
    torch.testing.assert_close(got, want.expand_as(got), rtol=bound, atol=bound)


def softplus(x):
    return float(np.log1p(np.exp(float(x))))


# ---------------------------------------------------------------------------------------------------------
# one set, by loops: function(pool, X (N, D), edges, edge weights) -> y


def linear(layer, x):
    y = layer.weight @ x
    return y if layer.bias is None else y + layer.bias


def weighted(X, logits):
    top = max(float(logit) for logit in logits)
    e = [math.exp(float(logit) - top) for logit in logits]
    return sum(a * x for a, x in zip(e, X, strict=True)) / sum(e)


def mean_of(X):
    return sum(X) / len(X)


def max_of(X):
    return X.sort(0).values[-1]


def mean_max(pool, X, *_):
    return torch.cat([mean_of(X), max_of(X)])


def mixed(pool, X, *_):
    omega = 1 / (1 + math.exp(-float(pool.raw_omega)))
    return omega * mean_of(X) + (1 - omega) * max_of(X)


def gated_mixed(pool, X, *_):
    omega = 1 / (1 + torch.exp(-linear(pool.gate, mean_of(X))))
    return omega * mean_of(X) + (1 - omega) * max_of(X)


def deepset(pool, X, *_):
    total = sum(linear(pool.phi[2], linear(pool.phi[0], x).clamp_min(0)) for x in X)
    return linear(pool.rho[2], linear(pool.rho[0], total).clamp_min(0))


def nin(pool, X, *_):
    first, second = pool.network[0], pool.network[2]
    return sum(linear(second, linear(first, x).clamp_min(0)).clamp_min(0) for x in X) / len(X)


def attention(pool, X, *_):
    return weighted(X, [pool.score.w @ torch.tanh(pool.score.V @ x) for x in X])


def gated_attention(pool, X, *_):
    gated = [torch.tanh(pool.V.weight @ x) / (1 + torch.exp(-pool.U.weight @ x)) for x in X]
    return weighted(X, [pool.w.weight @ g for g in gated])


def dynamic(pool, X, *_):
    b = [0.0] * len(X)
    for _ in range(pool.steps):
        s = weighted(X, b)
        length = math.sqrt(float((s * s).sum()))
        v = length**2 / (1 + length**2) * s / length
        b = [b_n + float(x @ v) for b_n, x in zip(b, X, strict=True)]
    return v


def gnp(pool, X, *_):
    p = [softplus(pool.raw_p[0]) + 0.1, -softplus(pool.raw_p[1]) - 0.1]
    g = []
    for d in range(D):
        part = 0 if d < 2 else 1
        total = sum((abs(float(x[d])) + 1e-6) ** p[part] for x in X)
        g.append((len(X) ** -float(pool.q[part]) * total) ** (1 / p[part]))
    return linear(pool.linear, torch.tensor(g, dtype=X.dtype))


def gem(pool, X, *_):
    p = softplus(pool.raw_p) + 0.01
    return torch.stack([(sum(v.clamp_min(1e-6) ** p for v in column) / len(X)) ** (1 / p) for column in X.T])


def softmax(pool, X, *_):
    return torch.stack([weighted(column, float(pool.t) * column) for column in X.T])


def lse(pool, X, *_):
    r = softplus(pool.raw_r) + 0.01
    return torch.stack([torch.log(sum(torch.exp(r * v) for v in column) / len(X)) / r for column in X.T])


def set2set(pool, X, *_):
    lstm = pool.aggr.lstm
    cell = torch.nn.LSTMCell(2 * D, D).double()
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    cell.load_state_dict({name: getattr(lstm, f"{name}_l0").detach() for name in names})
    state = (torch.zeros(1, D, dtype=X.dtype), torch.zeros(1, D, dtype=X.dtype))
    q_star = torch.zeros(1, 2 * D, dtype=X.dtype)
    for _ in range(3):
        state = cell(q_star, state)
        q = state[0][0]
        q_star = torch.cat([q, weighted(X, [x @ q for x in X])])[None]
    return q_star[0]


def attend(attn, queries, keys):
    return attn(queries[None], keys[None], keys[None])[0][0]


def mab(block, X, Y):
    H = X + attend(block.attn, X, Y)
    return torch.stack([h + linear(block.lin, h).clamp_min(0) for h in H])


def pma(block, X):
    X = torch.stack([linear(block.lin, x).clamp_min(0) for x in X])
    return mab(block.mab, block.seed[0], X)


def set_transformer(pool, X, *_):
    parts = pool.aggr
    Y = pma(parts.pma, mab(parts.encoders[0].mab, X, X))
    return mab(parts.decoders[0].mab, Y, Y)[0]


def gmt(pool, X, *_):
    parts = pool.aggr
    Y = pma(parts.pma1, X)
    return pma(parts.pma2, mab(parts.encoders[0].mab, Y, Y))[0]


def dense_adjacency(N, edges, weight):
    """A[i, j]: weight of the edge from i to j; parallel edges add up."""
    A = torch.zeros(N, N, dtype=weight.dtype)
    for (i, j), w in zip(edges.T.tolist(), weight, strict=True):
        A[i, j] += w
    return A


def gcn(conv, X, A):
    A = A + torch.eye(len(X), dtype=X.dtype)
    degree = A.sum(0)
    return (A / (degree[:, None] * degree).sqrt()).T @ (X @ conv.lin.weight.T) + conv.bias


def best(rows, score, ratio):
    kept = score.flatten().argsort(descending=True)[: math.ceil(ratio * len(rows))]
    return torch.cat([mean_of(rows[kept]), max_of(rows[kept])])


def sagp(pool, X, edges, weight):
    s = torch.tanh(gcn(pool.gnn, X, dense_adjacency(len(X), edges, weight)))
    return best(X * s, s, pool.ratio)


def asap(pool, X, edges, weight):
    N = len(X)
    pairs = [(i, j, w) for (i, j), w in zip(edges.T.tolist(), weight, strict=True)]
    pairs += [(i, i, torch.tensor(1.0, dtype=X.dtype)) for i in range(N)]
    c = []
    for i in range(N):
        near = torch.stack([X[j] for j, k, _ in pairs if k == i])
        master = linear(pool.lin, max_of(near))
        logits = [linear(pool.att, torch.cat([master, x])) for x in near]
        c.append(weighted(near, [logit if logit > 0 else 0.2 * logit for logit in logits]))
    conv = pool.gnn_score
    phi = []
    for i in range(N):
        local = sum(w * (linear(conv.lin1, c[j]) - linear(conv.lin2, c[i])) for j, k, w in pairs if k == i)
        phi.append(1 / (1 + torch.exp(-linear(conv.lin3, c[i]) - local)))
    phi = torch.stack(phi)
    return best(torch.stack(c) * phi, phi, pool.ratio)


def diffpool_parts(pool, X, edges, weight):
    """y and the auxiliary loss of one graph, with its N x N matrices."""
    A = dense_adjacency(len(X), edges, weight)
    Z = gcn(pool.embed, X, A).clamp_min(0)
    # A[from, to] here; PyG's dense convolution takes messages along rows, so from its columns.
    pooled, coarse, link, entropy = dense_diff_pool(Z, A.T, gcn(pool.assign, X, A))
    conv = DenseGCNConv(pool.coarse.in_channels, pool.coarse.out_channels).double()
    conv.load_state_dict(pool.coarse.state_dict())
    loops = torch.eye(pool.clusters, dtype=X.dtype)
    return conv(pooled, coarse + loops, add_loop=False)[0].mean(0), link + entropy


def diffpool(pool, X, edges, weight):
    return diffpool_parts(pool, X, edges, weight)[0]


def sinkhorn(score, epsilon, steps):
    """Plan from rows of 1/N to columns of 1/M, by potentials; epsilon comes down from 1 in the first half."""
    N, M = score.shape
    g = np.zeros(M)
    for i in range(steps):
        e = max(epsilon, epsilon ** (2 * i / steps))
        f = -e * (np.log(N) + logsumexp((score + g) / e, axis=1))
        g = -e * (np.log(M) + logsumexp((score + f[:, None]) / e, axis=0))
    return np.exp((score + f[:, None] + g) / e)


def numpy(*tensors):
    return [t.detach().numpy() for t in tensors]


def pair_costs(X, Z):
    return np.array([[((x - z) ** 2).sum() for z in Z] for x in X])


def wegl_of(X, Z, P):
    M = len(Z)
    return np.concatenate([(M * P[:, j] @ X - Z[j]) / np.sqrt(M) for j in range(M)])


def wegl(pool, X, *_):
    X, Z = numpy(X, pool.Z)
    C = pair_costs(X, Z)
    return wegl_of(X, Z, sinkhorn(-C / C.mean(), pool.epsilon, pool.steps))


def psi_of(pool, X):
    (X, W), s = numpy(X, pool.anchors), float(pool.log_s.exp())
    L = np.linalg.cholesky(np.exp(-pair_costs(W, W) / (2 * s)) + 1e-3 * np.eye(len(W)))
    return np.linalg.solve(L, np.exp(-pair_costs(X, W) / (2 * s)).T).T


def otk_of(psi, P):
    return np.concatenate([np.sqrt(P.shape[1]) * P[:, j] @ psi for j in range(P.shape[1])])


def otk(pool, X, *_):
    psi = psi_of(pool, X)
    return otk_of(psi, sinkhorn(psi @ pool.Z.detach().numpy().T, pool.epsilon, pool.steps))


def swe(pool, X, *_):
    X, theta, reference, w = numpy(X, pool.theta, pool.reference, pool.w)
    M, N, y = len(w), len(X), []
    for direction, r in zip(theta, reference.T, strict=True):
        values = np.sort(X @ direction / np.linalg.norm(direction))
        Q = np.interp((np.arange(M) + 0.5) / M, (np.arange(N) + 0.5) / N, values)
        y.append((w * (Q - np.sort(r))).sum())
    return np.array(y)


def covariance_of(pool, X):
    X, W = numpy(X, pool.W.weight)
    C = np.atleast_2d(np.cov(W @ X.T, bias=True))
    return C + (1e-5 * C.trace() / len(C) + np.finfo(np.float64).tiny ** 0.5) * np.eye(len(C))


def covariance(pool, X, *_):
    """The steps of Newton and Schulz on each eigenvalue."""
    C = covariance_of(pool, X)
    values, vectors = np.linalg.eigh(C)
    y, z = values / C.trace(), np.ones(len(C))
    for _ in range(5):
        y, z = y * (3 - z * y) / 2, z * (3 - z * y) / 2
    return (vectors * y * np.sqrt(C.trace()) @ vectors.T)[np.triu_indices(len(C))]


def uotp(pool, X, *_):
    """The same solver and coefficients as one problem."""
    return pool.problem(X[None]).pool(pool.solver, impl="reference")[0]


def uotp_default(pool, X, *_):
    """Four steps of Sinkhorn by hand, at alpha0 = 1."""
    Z = (10.0 * pool.raw_scale) * X
    alpha1, alpha2 = (10.0 * pool.log_alpha1).exp(), (10.0 * pool.log_alpha2).exp()
    v = torch.zeros_like(Z[:, 0])
    for _ in range(4):
        u = -alpha1 / (1.0 + alpha1) * (Z + v[:, None]).exp().sum(0).log()
        v = -alpha2 / (1.0 + alpha2) * (Z + u).exp().sum(1).log()
    return torch.stack([weighted(x, z + v) for x, z in zip(X.T, Z.T, strict=True)])


def uotp_single(pool, X, *_):
    """One step of Sinkhorn by hand, at alpha0 = 1."""
    Z, tau = (10.0 * pool.raw_scale) * X, 0.7 / 1.7
    u = -tau * Z.exp().sum(0).log()
    v = -tau * (Z + u).exp().sum(1).log()
    return torch.stack([weighted(x, z + v) for x, z in zip(X.T, Z.T, strict=True)])


def softmax_per_feature(pool, X, *_):
    scales = 10.0 * pool.raw_scale
    return torch.stack([weighted(column, float(s) * column) for s, column in zip(scales, X.T, strict=True)])


def gem_per_feature(pool, X, *_):
    exponents = torch.nn.functional.softplus(pool.raw_p) + 0.01
    pairs = zip(exponents, X.T, strict=True)
    return torch.stack([(sum(v.clamp_min(1e-6) ** p for v in c) / len(X)) ** (1 / p) for p, c in pairs])


def half_mean_max(pool, X, *_):
    half = (X.shape[1] + 1) // 2
    return torch.cat([mean_of(X)[:half], max_of(X)[half:]])


def unit(x):
    return x / math.sqrt(float((x * x).sum()))


def netvlad(pool, X, *_):
    sums = torch.zeros_like(pool.centres)
    for x in X:
        logits = linear(pool.assign, x)
        shares = weighted(torch.eye(len(logits), dtype=X.dtype), logits)
        for m, centre in enumerate(pool.centres):
            sums[m] += shares[m] * (x - centre)
    return unit(torch.cat([unit(row) for row in sums]))


def salad(pool, X, *_):
    """Three steps of Sinkhorn by scipy, clusters first, from scores with the dustbin's column."""
    scores, values = [], []
    for x in X:
        scores.append([*linear(pool.score[2], linear(pool.score[0], x).relu()), pool.dustbin])
        values.append(linear(pool.value[2], linear(pool.value[0], x).relu()))
    S, N, M = np.array(scores, dtype=float), len(X), pool.clusters
    columns = np.array([1 / N] * M + [1 - M / N] if N > M else [1 / (M + 1)] * (M + 1))
    tau, v = pool.FIXED / (1 + pool.FIXED), np.zeros((N, 1))
    for _ in range(3):
        u = tau * (np.log(columns) - logsumexp(S + v, axis=0))
        v = tau * (-math.log(N) - logsumexp(S + u, axis=1, keepdims=True))
    P = np.exp(S + u + v)
    sums = [sum(P[n, m] * values[n] for n in range(N)) for m in range(M)]
    return unit(torch.cat([unit(row) for row in sums]))


def layer_norm(layer, x):
    centred = x - x.sum() / len(x)
    return layer.weight * centred / torch.sqrt((centred * centred).sum() / len(x) + 1e-6) + layer.bias


def gelu(x):
    return torch.stack([v * (1 + math.erf(float(v) / math.sqrt(2))) / 2 for v in x])


def map_head(pool, X, *_):
    q = linear(pool.q, pool.latent[0, 0])
    keys, values = zip(*(linear(pool.kv, x).split(D) for x in X), strict=True)
    width, parts = D // pool.heads, []
    for h in range(pool.heads):
        part = slice(h * width, (h + 1) * width)
        logits = [k[part] @ q[part] / math.sqrt(width) for k in keys]
        parts.append(weighted([v[part] for v in values], logits))
    z = linear(pool.proj, torch.cat(parts))
    return z + linear(pool.mlp.fc2, gelu(linear(pool.mlp.fc1, layer_norm(pool.norm, z))))


def ep(pool, X, *_):
    parts, values = [], [linear(pool.value, x) for x in X]
    width = D // len(pool.queries)
    for j, query in enumerate(pool.queries):
        part = slice(j * width, (j + 1) * width)
        parts.append(weighted([v[part] for v in values], [x @ query / math.sqrt(D) for x in X]))
    return torch.cat(parts)


def simpool(pool, X, *_):
    normed = [layer_norm(pool.norm, x) for x in X]
    query = linear(pool.wq, mean_of(X))
    logits = [linear(pool.wk, x) @ query / math.sqrt(D) for x in normed]
    lowest = min(float(x.min()) for x in normed)
    powers = [(x - lowest + 1e-6) ** pool.gamma for x in normed]
    return weighted(powers, logits) ** (1 / pool.gamma)


REFERENCES = {
    "add": lambda pool, X, *_: len(X) * mean_of(X),
    "mean": lambda pool, X, *_: mean_of(X),
    "max": lambda pool, X, *_: max_of(X),
    "median": lambda pool, X, *_: np.median(X, axis=0),
    "quantile": lambda pool, X, *_: np.quantile(X, 0.9, axis=0),
    "topk-mean": lambda pool, X, *_: np.sort(X, axis=0)[-8:].mean(0),
    "std": lambda pool, X, *_: np.std(X.numpy(), axis=0),
    "mean-max": mean_max,
    "mixed": mixed,
    "gated-mixed": gated_mixed,
    "deepset": deepset,
    "set2set": set2set,
    "attention": attention,
    "gated-attention": gated_attention,
    "dynamic": dynamic,
    "gnp": gnp,
    "sagp": sagp,
    "asap": asap,
    "nin": nin,
    "set-transformer": set_transformer,
    "otk": otk,
    "wegl": wegl,
    "diffpool": diffpool,
    "gem": gem,
    "gem-per-feature": gem_per_feature,
    "half-mean-max": half_mean_max,
    "softmax": softmax,
    "softmax-per-feature": softmax_per_feature,
    "uotp": uotp_default,
    "uotp-single": uotp_single,
    "lse": lse,
    "vpa": lambda pool, X, *_: math.sqrt(len(X)) * mean_of(X),
    "gmt": gmt,
    "swe": swe,
    "covariance": covariance,
    "netvlad": netvlad,
    "salad": salad,
    "map": map_head,
    "ep": ep,
    "simpool": simpool,
} | {name: uotp for name in NAMES if name.startswith(("uotp-sinkhorn", "uotp-badmm"))}


@pytest.mark.parametrize("name", NAMES)
def test_one_set_at_a_time(name):
    """Away from the initial values: those are often neutral (q = 1, biases 0)."""
    torch.manual_seed(1)
    pool = small(name)
    with torch.no_grad():
        for parameter in pool.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    sets = batch((6, 1, 4, 11), D, seed=3)
    with torch.no_grad():
        y = call(pool, sets.x, **sets.ragged, edge_weight=sets.weight)
        for b in range(len(sets.sizes)):
            close(y[b], REFERENCES[name](pool, *sets.alone(b)))


@torch.no_grad()
@pytest.mark.parametrize(("name", "option"), [("map", "heads"), ("ep", "queries")])
@pytest.mark.parametrize("parts", [1, 2])
def test_wider_heads(name, option, parts):
    pool, sets = zoo.build(name, D, **{option: parts}).double(), batch((6, 2), D)
    for b, y in enumerate(pool(sets.x, sets.index)):
        close(y, REFERENCES[name](pool, *sets.alone(b)))


@pytest.mark.parametrize("heads", [1, 4])
def test_map_loads_weights_of_timm(heads):
    """A state dict of its layer loads, and gives the same to rounding."""
    timm = import_timm()
    theirs = timm.layers.AttentionPoolLatent(8, num_heads=heads, norm_layer=layer_norm_of_vits).double()
    ours = zoo.build("map", 8, heads=heads).double()
    ours.load_state_dict(theirs.state_dict())
    X = torch.randn(3, 6, 8, dtype=torch.float64)
    close(ours(X), theirs(X))
    ours, theirs = zoo.build("map", 16).double(), timm.layers.AttentionPoolLatent(16)
    assert ours.heads == theirs.num_heads
    assert {k: v.shape for k, v in ours.state_dict().items() if not k.startswith("norm")} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }


def layer_norm_of_vits(dim, **options):
    return torch.nn.LayerNorm(dim, eps=1e-6, **options)


def test_uotp_with_a_sum_readout():
    pool, sets = zoo.build("uotp", D, readout="sum").double(), batch((6, 1, 4), D)
    with torch.no_grad():
        for b, y in enumerate(pool(sets.x, sets.index)):
            X = sets.alone(b)[0]
            close(y, len(X) * uotp_default(pool, X))


@pytest.mark.parametrize("name", ["uotp-sinkhorn", "uotp-badmm-e-paper"])
def test_options_reach_the_uot_pooling(name):
    build = UOTPooling.published if name.endswith("-paper") else by_solver
    solver: Any = name.removeprefix("uotp-").removesuffix("-paper")
    pools = []
    for make in (
        lambda **options: zoo.build(name, D, **options),
        lambda **options: build(D, solver, **options),
    ):
        torch.manual_seed(1)
        pools.append(make(K=2, p0="learned", q0="learned", alpha1=0.5))
    x = torch.randn(2, 5, D)
    assert torch.equal(pools[0](x), pools[1](x))


def by_solver(dim, solver, **options):
    return classic(dim, solver=solver, **options)


# ---------------------------------------------------------------------------------------------------------
# PyTorch Geometric


def test_diffpool_with_its_loss():
    """The same values and losses as with dense matrices, for parallel edges too, with or without weights."""
    pool = small("diffpool")
    sets = batch((6, 0, 5, 1), D)
    edges = torch.cat([sets.edges, sets.edges[:, :5], sets.edges[:, :2]], dim=1)
    weight = torch.cat([sets.weight, torch.rand(7, dtype=torch.float64)])
    for w in (weight, None):
        y = call(pool, sets.x, sets.index, dim_size=4, edge_index=edges, edge_weight=w)
        parts = []
        for b, (low, high) in enumerate([(0, 6), (6, 6), (6, 11), (11, 12)]):
            of_b = (edges[0] >= low) & (edges[0] < high)
            if high > low:
                given = torch.ones_like(weight) if w is None else w
                want, loss = diffpool_parts(pool, sets.x[low:high], edges[:, of_b] - low, given[of_b])
                close(y[b], want)
                parts.append(loss)
        close(pool.aux_loss, sum(parts) / 3)


# ---------------------------------------------------------------------------------------------------------
# POT, scipy


def test_otk_plan_against_pot():
    torch.manual_seed(0)
    pool = zoo.build("otk", D, 5, references=3, steps=2000).double()
    X = torch.randn(7, D, dtype=torch.float64)
    psi = psi_of(pool, X)
    cost = -psi @ pool.Z.detach().numpy().T
    P = ot.sinkhorn([], [], cost, pool.epsilon, method="sinkhorn_stabilized", numItermax=20000, stopThr=1e-14)
    close(pool(X[None])[0], otk_of(psi, P))


def test_wegl_plan_against_pot():
    torch.manual_seed(0)
    pool = zoo.build("wegl", D, references=3, epsilon=0.05, steps=3000).double()
    X = torch.randn(7, D, dtype=torch.float64)
    cost = pair_costs(*numpy(X, pool.Z))
    eps = 0.05 * cost.mean()
    P = ot.sinkhorn([], [], cost, eps, method="sinkhorn_stabilized", numItermax=20000, stopThr=1e-14)
    close(pool(X[None])[0], wegl_of(*numpy(X, pool.Z), P))


@pytest.mark.parametrize("N", [20, 100, 500])
def test_wegl_at_its_defaults(N):
    """How far the entropic plan is from the linear program of the paper, as its docstring says: 15 to 19 %."""
    torch.manual_seed(0)
    X = torch.randn(20, N, 16, dtype=torch.float64)
    pool = zoo.build("wegl", 16).double().fit(X)
    off = []
    for x, y in zip(X.numpy(), pool(X).numpy(), strict=True):
        Z = pool.Z.numpy()
        want = wegl_of(x, Z, ot.emd([], [], pair_costs(x, Z)))
        off.append(np.linalg.norm(y - want) / np.linalg.norm(want))
    assert 0.13 < np.mean(off) < 0.21


@pytest.mark.parametrize(("rank", "bound"), [(1, tol.F64), (2, tol.NEWTON_SCHULZ_2), (4, tol.NEWTON_SCHULZ_4)])
def test_covariance_against_a_true_root(rank, bound):
    """Five steps do not converge where an eigenvalue is small against the trace."""
    torch.manual_seed(0)
    pool = zoo.build("covariance", D, rank=rank).double()
    torch.nn.init.orthogonal_(pool.W.weight)
    X = torch.randn(200, D, dtype=torch.float64)
    want = sqrtm(covariance_of(pool, X))[np.triu_indices(rank)]
    y = pool(X[None])[0].detach().numpy()
    assert np.abs(y - want).max() < bound * np.abs(want).max()


# ---------------------------------------------------------------------------------------------------------
# limits


@pytest.mark.parametrize(
    ("option", "name", "shape"),
    [
        ({"hidden": 7}, "deepset", (2, D)),
        ({"hidden": 7}, "nin", (2, D)),
        ({"hidden": 7}, "diffpool", (2, D)),
        ({"hidden": 7, "references": 3}, "otk", (2, 21)),
        ({"hidden": 7, "references": 3}, "swe", (2, 7)),
        ({"hidden": 7, "references": 3}, "wegl", (2, 12)),
        ({"hidden": 7, "rank": 3}, "covariance", (2, 6)),
        ({"hidden": 7}, "mean-max", (2, 8)),
        ({"hidden": 7}, "set2set", (2, 8)),
        ({"hidden": 7}, "map", (2, D)),
    ],
)
def test_widths(option, name, shape):
    pool = zoo.build(name, D, **SMALL.get(name, {}) | option).double()
    edges = torch.tensor([[0, 7], [1, 8]])
    assert call(pool, torch.rand(2, 6, D, dtype=torch.float64), edge_index=edges).shape == shape
    assert pool.out_dim == shape[1]


def test_wegl_references_are_the_centres_of_clusters():
    centres = torch.tensor([[0.0, 9.0], [9.0, 0.0], [-9.0, 0.0]], dtype=torch.float64)
    x = (centres + 0.1 * torch.randn(20, 3, 2, dtype=torch.float64)).flatten(0, 1)
    pool = zoo.build("wegl", 2, references=3).double().fit(x)
    order = torch.cdist(centres, pool.Z).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    close(pool.Z[order], x.reshape(20, 3, 2).mean(0))


def test_otk_takes_its_width_from_the_data():
    """s is the mean squared distance of two rows; in half precision too, where squares of 200 overflow."""
    x = torch.randn(30, D, dtype=torch.float64)
    pool = small("otk").fit(x)
    close(pool.log_s.exp(), torch.cdist(x, x).square().mean())
    pools = []
    for scale in (1.0, 1e3):  # the kernel does not change with the unit of x
        pool = small("otk")
        torch.manual_seed(0)
        pools.append(pool.fit(scale * x))
    close(pools[1](1e3 * x[None]), pools[0](x[None]))
    half = zoo.build("otk", D, 3, references=2).half().fit(200 * torch.randn(50, D))
    assert half.log_s.isfinite()


def test_a_plan_has_finite_derivatives_beside_absent_rows():
    """The present row needs a large potential for its second column, and the absent one gets it too."""
    score = torch.tensor([[[0.0, -1e3], [0.0, 0.0]]], requires_grad=True)
    sets = DenseSets(1, torch.tensor([[[True], [False]]]))
    P = transport_plan(score, sets, epsilon=1.0, steps=1)
    (dscore,) = torch.autograd.grad(P[..., 0].sum(), score)
    assert P[0, 1].tolist() == [0.0, 0.0]
    assert dscore.isfinite().all()
