"""The model for torchmil, in the package's own trainer and wrapper."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests import tolerances as tol

pytest.importorskip("torchmil")
from tensordict import TensorDict
from torchmil.data import collate_fn
from torchmil.models import ABMIL, MILModelWrapper
from torchmil.utils import Trainer

from uotpool.integrations.torchmil import UOTMIL

D = 6


def bags(count, seed):
    """Bags of 3 to 8 instances; in every second one an instance has a large first feature."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for b in range(count):
        size = int(torch.randint(3, 9, (), generator=generator))
        X = torch.randn(size, D, generator=generator)
        y = torch.zeros(size)
        if b % 2:
            X[0, 0], y[0] = 6.0, 1.0
        found.append(TensorDict({"X": X, "Y": torch.tensor(b % 2), "y_inst": y}))
    return found


def loader(count, seed):
    return torch.utils.data.DataLoader(bags(count, seed), batch_size=8, collate_fn=collate_fn)


def test_it_learns_in_the_trainer_of_the_package():
    """Bags of several sizes, padded and masked by the package; the witness gets the largest contribution."""
    torch.manual_seed(0)
    model = UOTMIL(in_shape=(D,), feat_ext=nn.Linear(D, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    trainer = Trainer(model, optimizer, device="cpu", disable_pbar=True, verbose=False)
    trainer.train(12, loader(64, seed=1))
    batch = next(iter(torch.utils.data.DataLoader(bags(32, 2), batch_size=32, collate_fn=collate_fn)))
    logits, parts = MILModelWrapper(model).predict(batch)
    assert ((logits > 0) == batch["Y"].bool()).float().mean() > 0.9
    there = batch["mask"].bool()
    assert bool((parts[~there] == 0).all())
    torch.testing.assert_close(parts.sum(1), logits - model.classifier.bias, rtol=tol.F32, atol=tol.F32)
    positive = batch["Y"].bool() & (logits > 0)
    found = parts.masked_fill(~there, -torch.inf).argmax(1) == batch["y_inst"].argmax(1)
    assert found[positive].float().mean() > 0.9


def test_it_has_the_interface_of_the_packages_own_model():
    """The same calls return the same kinds of things as ABMIL's, and attention is the plan's marginal."""
    torch.manual_seed(0)
    ours, theirs = UOTMIL((D,)), ABMIL((D,))
    X, Y = torch.randn(3, 5, D), torch.tensor([0, 1, 1])
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    for given in (None, mask, mask.bool(), mask.float()):
        for model in (ours, theirs):
            logits, attention = model(X, given, return_att=True)
            assert logits.shape == (3,)
            assert attention.shape == (3, 5)
            assert torch.equal(model(X, given), logits)
            again, losses = model.compute_loss(Y, X, given)
            assert torch.equal(again, logits)
            assert list(losses) == ["BCEWithLogitsLoss"]
            assert losses["BCEWithLogitsLoss"].requires_grad
            predicted, instances = model.predict(X, given)
            assert torch.equal(predicted, logits)
            assert instances.shape == (3, 5)
            assert torch.equal(model.predict(X, given, return_inst_pred=False), logits)
    attention = ours(X, mask, return_att=True)[1]
    torch.testing.assert_close(attention.sum(1), torch.ones(3))
    torch.testing.assert_close(attention, ours.pool.plan(X, mask=mask).sum(-1))
    # What padding holds is never read.
    spoiled = X.masked_fill(~mask.bool().unsqueeze(-1), torch.nan)
    assert torch.equal(ours(spoiled, mask), ours(X, mask))
