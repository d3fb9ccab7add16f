"""What can be asked of a layer can be asked of every module that holds one, in the layout of its input."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from tests import tolerances as tol
from uotpool import AdaptiveUOTPool1d, AdaptiveUOTPool2d, Learned, UOTPool2d, UOTPooling
from uotpool.integrations.pyg import UOTAggregation
from uotpool.integrations.sentence_transformers import UOTPooling as SentencePooling
from uotpool.integrations.torchmil import UOTMIL

D = 6
OPTIONS: dict[str, Any] = {"scale": Learned([1.0, -0.5, 0.0, 2.0, 1.5, 0.3]), "q0": "learned"}


def features():
    X = torch.randn(2, 5, D)
    return {"token_embeddings": X, "attention_mask": torch.tensor([[1, 1, 1, 0, 0], [1] * 5])}


BAD: Any = 5  # no type that anything takes

# A wrapper, its input, the shapes of its plan and of its scores, and where the plan's samples of a set add up.
WRAPPERS = {
    "global": lambda: (AdaptiveUOTPool2d(D, **OPTIONS), (torch.randn(2, D, 3, 4),), (2, D, 3, 4), (2, 3, 4)),
    "unbatched": lambda: (AdaptiveUOTPool2d(D, **OPTIONS), (torch.randn(D, 3, 4),), (D, 3, 4), (3, 4)),
    "signal": lambda: (AdaptiveUOTPool1d(D, 2, **OPTIONS), (torch.randn(2, D, 6),), (2, D, 2, 3), (2, 2, 3)),
    "windows": lambda: (
        UOTPool2d(D, 2, **OPTIONS),
        (torch.randn(2, D, 4, 6),),
        (2, D, 2, 3, 2, 2),
        (2, 2, 3, 2, 2),
    ),
    "graph": lambda: (
        UOTAggregation(D, **OPTIONS),
        (torch.randn(7, D), torch.tensor([0, 0, 1, 1, 1, 2, 2])),
        (7, D),
        (7,),
    ),
    "heads": lambda: (
        UOTAggregation(D, **OPTIONS),
        (torch.randn(7, 3, D), torch.tensor([0, 0, 1, 1, 1, 2, 2]), None, None, 0),
        (7, 3, D),
        (7, 3),
    ),
    "sentences": lambda: (SentencePooling(D, **OPTIONS), (features(),), (2, 5, D), (2, 5)),
    "bags": lambda: (UOTMIL((D,), **OPTIONS), (torch.randn(2, 5, D),), (2, 5, D), (2, 5)),
    "list of bags": lambda: (UOTMIL((D,), **OPTIONS), ([torch.randn(4, D), torch.randn(3, D)],), (7, D), (7,)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_plan_and_scores_are_in_the_layout_of_the_input(name):
    module, inputs, plan_shape, scores_shape = WRAPPERS[name]()
    P, scores = module.plan(*inputs), module.scores(*inputs)
    assert P.shape == plan_shape
    assert scores.shape == scores_shape
    in_place = {"global": 1, "signal": 1, "windows": 1, "unbatched": 0}.get(name, -1)
    torch.testing.assert_close(P.sum(in_place), scores)
    problem = module.problem(*inputs)
    own = module.pool
    assert (problem.gap(problem.plan(own.solver)) >= 0).all()
    torch.testing.assert_close(problem.plan(own.solver).sum(), P.sum())
    assert torch.equal(module.scales(), own.scales())
    assert module.coefficients().keys() == own.coefficients().keys()


@pytest.mark.parametrize("name", ["global", "graph", "bags"])
def test_a_map_for_each_class(name):
    module, inputs, _, scores_shape = WRAPPERS[name]()
    head = nn.Linear(D, 3)
    maps = module.scores(*inputs, output=head)
    assert maps.shape == (*scores_shape, 3)
    for c in range(3):
        one = module.scores(*inputs, output=lambda y, c=c: head(y)[:, c])
        torch.testing.assert_close(maps[..., c], one)


@pytest.mark.parametrize("name", WRAPPERS)
def test_config_and_state_bring_it_back(name):
    module, inputs, *_ = WRAPPERS[name]()
    config = json.loads(json.dumps(module.get_config()))
    twin = type(module).from_config(config)
    twin.load_state_dict(module.state_dict())
    assert json.loads(json.dumps(twin.get_config())) == config
    assert torch.equal(twin.scores(*inputs), module.scores(*inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_looks_into_half_precision_is_float32(dtype):
    """float16 has no number between 0 and 6e-8, and bfloat16 256 between 1 and 2."""
    X = torch.randn(1, 20_000, D).to(dtype)
    pool = UOTPooling(D).to(dtype)
    P, scores = pool.plan(X), pool.scores(X)
    assert P.dtype == scores.dtype == torch.float32
    assert float(P.detach().sum()) == pytest.approx(1.0, abs=tol.MASS_F32_LARGE)
    assert (P > 0).all()
    assert len(scores.unique()) > 1000
    assert pool.diagnostics(X)["mass"] == pytest.approx(1.0, abs=tol.MASS_F32_LARGE)
    assert pool.problem(X).plan().dtype == torch.float32


def test_a_prior_per_call():
    pool = UOTPooling(D, q0="learned").double()
    X = torch.randn(2, 4, D, dtype=torch.float64)
    q0 = torch.randn(2, 4, dtype=torch.float64).softmax(-1)
    y = pool(X, q0=q0)
    fixed = UOTPooling(D).double()
    torch.testing.assert_close(y, fixed(X, q0=q0))
    assert not torch.allclose(y, pool(X))
    rows, ptr = X.flatten(0, 1), torch.tensor([0, 4, 8])
    torch.testing.assert_close(pool(rows, ptr=ptr, q0=q0.flatten()), y)
    order = torch.randperm(8)
    index = torch.arange(2).repeat_interleave(4)[order]
    torch.testing.assert_close(pool(rows[order], index, q0=q0.flatten()[order]), y)
    torch.testing.assert_close(pool.plan(X, q0=q0), fixed.plan(X, q0=q0))


def test_several_classes_and_ragged_bags():
    model = UOTMIL((D,), classes=3)
    bags = [torch.randn(4, D), torch.randn(3, D)]
    logits, attention = model(bags, return_att=True)
    assert logits.shape == (2, 3)
    torch.testing.assert_close(attention.split([4, 3])[0].sum(), torch.tensor(1.0))
    ptr = torch.tensor([0, 4, 7])
    torch.testing.assert_close(model(torch.cat(bags), ptr=ptr), logits)
    loss = model.compute_loss(torch.tensor([0, 2]), bags)[1]["CrossEntropyLoss"]
    loss.backward()
    _, instances = model.predict(bags)
    assert instances.shape == (7, 3)
    torch.testing.assert_close(instances.split([4, 3])[0].sum(0), logits[0] - model.classifier.bias)
