"""Swapping the pool of small networks built in unusual ways: it is right, or refused for a true reason."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests import tolerances as tol
from uotpool import replace_global_pool, restore_pools
from uotpool.nn.sites import match, tensors
from uotpool.nn.tokens import TokenPool

DIM, SIDE = 8, 4


class Net(nn.Module):
    """A tiny transformer without blocks: patches, some class tokens, `norm`, and then a function of its own."""

    def __init__(self, end, lead=0):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, DIM, 8, 8), nn.LayerNorm(DIM)
        self.cls = nn.Parameter(torch.randn(1, lead, DIM))
        self.head, self.dense = nn.Linear(DIM, 5), nn.Linear(DIM, 2)
        self.end = end

    def tokens(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.norm(torch.cat((self.cls.expand(len(x), -1, -1), x), 1))

    def forward(self, x):
        return self.end(self, self.tokens(x))


def averages(net, x):
    return net.head(x.mean(1))


def plain():
    return Net(averages)


def pictures(n=3, side=8 * SIDE):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def swap(net, **options):
    return replace_global_pool(net, example=pictures(1), **options)


def untouched(net):
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    assert not any(isinstance(m, TokenPool) for m in net.modules())
    assert not hasattr(net, "uotpool_swaps")


# --- what a network returns, and how it calls its head


@dataclass
class Output:
    logits: torch.Tensor


class Opaque:
    def __init__(self, logits):
        self.logits = logits


ENDS = {
    "plain": averages,
    "keyword": lambda net, x: net.head(input=x.mean(1)),
    "no head": lambda net, x: x.mean(1),
    "no head, dict": lambda net, x: {"y": x.mean(1)},
    "dict": lambda net, x: {"y": net.head(x.mean(1))},
    "nested": lambda net, x: [(net.head(x.mean(1)),), {"name": "y"}],
    "dataclass": lambda net, x: Output(net.head(x.mean(1))),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_network_that_averages_is_found_however_it_returns(end):
    net = Net(end).eval()
    (before,) = tensors(net(pictures()))
    swap(net, start="mean")
    assert isinstance(net.norm.uotpool, TokenPool)
    (after,) = tensors(net(pictures()))
    torch.testing.assert_close(after, before, rtol=0, atol=tol.F32)
    with torch.no_grad():
        net.norm.uotpool.pool.raw_scale.fill_(3.0)
    assert not torch.equal(tensors(net(pictures()))[0], after)


class Pooler(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(DIM, DIM)

    def forward(self, hidden):
        return self.dense(hidden.mean(1)).tanh()


def with_pooler():
    net = Net(lambda net, x: net.head(net.pooler(hidden=x)))
    net.pooler = Pooler()
    return net


def test_a_pooler_that_is_called_by_keyword():
    net = with_pooler().eval()
    before = net(pictures())
    swap(net, start="mean")
    assert isinstance(net.pooler.uotpool, TokenPool)
    torch.testing.assert_close(net(pictures()), before, rtol=0, atol=tol.F32)


def uses_elsewhere(net, x):
    return net.head(x.mean(1)), net.dense(x)


def asserts(net, x):
    assert x.shape[1] == SIDE**2, "wants all tokens"
    return net.head(x.mean(1))


def divides(net, x):
    return net.head(x.mean(1)) * (1 / (x.shape[1] - 1))


def looks_up(net, x):
    return net.head(x.mean(1)) + {SIDE**2: 0.0}[x.shape[1]]


REFUSED = {
    "elsewhere": (uses_elsewhere, r"whose output changes where one token stands for all"),
    "assert": (asserts, r"that fails where one token stands for all \(AssertionError: wants all tokens"),
    "divide": (divides, r"that fails where one token stands for all \(ZeroDivisionError"),
    "look up": (looks_up, r"that fails where one token stands for all \(KeyError: 1\)"),
    "opaque": (lambda net, x: Opaque(net.head(x.mean(1))), "whose output could not be seen"),
}


@pytest.mark.parametrize(("end", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_swapped_is_refused_with_the_reason(end, why):
    net = Net(end)
    message = rf"^model: expected .*'norm' for its pool alone, got one {why}"
    with pytest.raises(ValueError, match=message) as found:
        swap(net)
    assert "a UOTPooling in a head of your own" in str(found.value)
    assert (found.value.__cause__ is not None) == ("fails" in why)
    untouched(net)


def test_what_is_not_seen_is_not_called_something_else():
    with pytest.raises(ValueError, match="what it makes of its tokens could not be seen"):
        swap(Net(lambda _net, x: x.mean(1).sum(1)))
    with pytest.raises(
        ValueError, match="what it makes of its tokens is neither their mean nor the class token"
    ):
        swap(Net(lambda net, x: net.head(x.amax(1))))


# --- which tokens


class Stem(Net):
    """An earlier convolution has 36 positions; the patches are 49, and a class token comes in front."""

    def __init__(self):
        super().__init__(lambda net, x: net.head(x[:, 0]), lead=1)
        self.early = nn.Conv2d(3, 3, 9, 9)

    def tokens(self, x):
        return super().tokens(x + self.early(x).mean((2, 3), keepdim=True))


def test_no_patch_is_left_out():
    net = Stem().eval()
    with torch.no_grad():
        tokens = net.tokens(pictures(side=56))
        replace_global_pool(net, example=pictures(1, side=56), tokens="patches", start="mean")
        assert net.norm.uotpool.skip == 1
        found = net(pictures(side=56))
    torch.testing.assert_close(found, net.head(tokens[:, 1:].mean(1)), rtol=0, atol=tol.F32)


@pytest.mark.parametrize("bias", [1.0, 10.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("left_out", [0, 1, 3])
def test_rounding_does_not_decide_which_tokens_are_averaged(bias, dtype, left_out):
    """A large bias is in all tokens: half precision does not tell means with and without one token apart."""
    for seed in range(3):
        torch.manual_seed(seed)
        net = Net(lambda net, x: net.head(x[:, left_out:].sum(1) / (x.shape[1] - left_out)), lead=3)
        with torch.no_grad():
            net.norm.bias.normal_(std=bias)
        net = net.to(dtype)
        x = torch.randn(1, 3, 112, 112).to(dtype)  # 14 x 14 patches
        replace_global_pool(net, example=x)
        assert net.norm.uotpool.skip == left_out


def test_a_mean_is_matched_in_full_precision():
    tokens = torch.randn(2, 20, 4, dtype=torch.float64)
    site = match("", "after", tokens, tokens[:, 5:].mean(1))
    assert site is not None
    assert site.left_out == 5


# --- a second swap, copies, names


def test_a_second_swap_is_refused_and_stacks_nothing():
    net = swap(plain())
    names = [name for name, _ in net.named_modules()]
    named = [{"name": name} for name in ("norm", "norm.uotpool", "norm.uotpool.pool")]
    for options in ({}, {"tokens": "all"}, *named):
        with pytest.raises(ValueError, match=r"swapped already: norm\.uotpool \(TokenPool\); build it anew"):
            swap(net, **options)
    assert [name for name, _ in net.named_modules()] == names
    assert len(net.norm._forward_hooks) == len(net.uotpool_swaps) == 1


def test_replicas_use_the_layer_of_their_own():
    """As nn.DataParallel makes them, which needs GPUs: modules are copied flat, and hooks are shared."""
    net = swap(plain(), start="mean").eval()
    replica = net.norm._replicate_for_data_parallel()
    replica.weight, replica.bias = net.norm.weight, net.norm.bias
    replica.uotpool = TokenPool(DIM, lead=0, start="mean").eval()
    with torch.no_grad():
        replica.uotpool.pool.raw_scale.fill_(3.0)
        x = torch.randn(2, 5, DIM)
        tokens = nn.functional.layer_norm(x, (DIM,), net.norm.weight, net.norm.bias)
        torch.testing.assert_close(replica(x), replica.uotpool(tokens))
        assert not torch.allclose(replica(x), net.norm(x))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_use_the_layer_of_their_own(again):
    net = swap(Net(averages)).eval()
    expected = net(pictures())
    other = again(net)
    assert torch.equal(other(pictures()), expected)
    with torch.no_grad():
        other.norm.uotpool.pool.raw_scale.fill_(3.0)
    assert not torch.equal(other(pictures()), expected)
    assert torch.equal(net(pictures()), expected)


def test_a_name_that_is_taken_changes_nothing():
    net = plain()
    net.norm.uotpool = nn.Identity()
    with pytest.raises(ValueError, match=r"^model: expected 'norm' without an attribute 'uotpool'.*Identity"):
        swap(net)
    untouched(net)
    record = swap(plain()).uotpool_swaps
    with pytest.raises(ValueError, match=r"^model: expected 'norm' without an attribute 'uotpool'"):
        restore_pools(net, record)
    untouched(net)


def test_a_record_for_another_kind_of_module():
    (entry,) = swap(plain()).uotpool_swaps
    with pytest.raises(
        ValueError, match=r"^record: place: expected 'output' at a model of transformers.*'norm'"
    ):
        restore_pools(plain(), [entry | {"place": "output"}])
    # A network of somebody's own may return a pooled output or not, which the next run tells.
    net = restore_pools(Net(lambda _net, x: x), [entry | {"place": "output", "name": ""}])
    with pytest.raises(TypeError, match=r"^output: expected what a model of transformers returns"):
        net(pictures())


@pytest.mark.parametrize("pooler", [False, True])
def test_compiled_after_the_swap(pooler):
    """`fullgraph` fails on anything that breaks the graph, as a hook might; "eager" needs no C++ compiler."""
    net = (with_pooler() if pooler else plain()).eval()
    swap(net, start="mean")
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(pictures()), net(pictures()), rtol=0, atol=tol.F32)
