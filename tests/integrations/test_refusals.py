# mypy: disable-error-code="arg-type"
"""Wrong input of the integrations is refused by the name of the argument."""

from __future__ import annotations

import pytest
import torch
from torch import nn, ones

pytest.importorskip("torch_geometric")
pytest.importorskip("sentence_transformers")
pytest.importorskip("torchmil")

from uotpool.integrations.pyg import UOTAggregation
from uotpool.integrations.sentence_transformers import UOTPooling
from uotpool.integrations.torchmil import UOTMIL

D = 4
X, BAGS, INDEX = torch.randn(5, D), torch.randn(2, 5, D), torch.tensor([0, 0, 1, 2, 3])
PTR = torch.tensor([0, 2, 2, 5])


def graph(*args, **options):
    return UOTAggregation(D)(*args, **options)


def sentences(**features):
    return UOTPooling(D)(features)


def bags(*args, **options):
    return UOTMIL((D,))(*args, **options)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("x", lambda: UOTAggregation(D).forward(5)),
        ("x", lambda: graph(X[:, 0], INDEX, dim=0)),
        ("x", lambda: graph(X[:, :3], INDEX)),
        ("dim", lambda: graph(X, INDEX[:D], dim=-1)),
        ("dim", lambda: graph(BAGS, INDEX, dim=2)),
        ("index", lambda: graph(X, INDEX, dim_size=2)),
        ("index", lambda: graph(BAGS, INDEX, dim_size=2)),
        ("index", lambda: graph(BAGS, INDEX[:4], dim=1)),
        ("index", lambda: UOTAggregation(D).forward(X, [0, 0, 1])),
        ("dim_size", lambda: UOTAggregation(D).forward(BAGS, ptr=PTR, dim_size=4, dim=1)),
        ("dim_size", lambda: UOTAggregation(D).forward(BAGS, dim_size=2, dim=1)),
        ("features", lambda: UOTPooling(D)(5)),
        ("features", lambda: sentences(input_ids=ones(2, 5), attention_mask=ones(2, 5))),
        ("features", lambda: sentences(token_embeddings=BAGS, token_weights_sum=ones(2))),
        ("token_embeddings", lambda: sentences(token_embeddings=BAGS[..., :3])),
        ("token_embeddings", lambda: sentences(token_embeddings=X)),
        ("token_embeddings", lambda: sentences(token_embeddings=BAGS.long())),
        ("token_embeddings", lambda: sentences(token_embeddings=BAGS, cu_seq_lens_q=PTR)),
        ("ptr", lambda: sentences(token_embeddings=BAGS[:1], cu_seq_lens_q=PTR[:2])),
        ("attention_mask", lambda: sentences(token_embeddings=BAGS, attention_mask=ones(2, 6))),
        ("attention_mask", lambda: sentences(token_embeddings=BAGS, attention_mask=[[1] * 5] * 2)),
        ("mask", lambda: sentences(token_embeddings=BAGS, attention_mask=-torch.inf * ones(2, 5))),
        ("embedding_dimension", lambda: UOTPooling(0)),
        ("include_prompt", lambda: UOTPooling(D, 1)),
        ("q0", lambda: UOTPooling(D, q0=nn.Linear(D, 1))),
        ("solver", lambda: UOTPooling(D, solver="sinkhron")),
        ("in_shape", lambda: UOTMIL(D)),
        ("in_shape", lambda: UOTMIL((0,))),
        ("feat_ext", lambda: UOTMIL((D,), feat_ext="x")),
        ("mask", lambda: bags(BAGS, ones(2, 3))),
        ("X", lambda: bags(torch.randn(2, 5, D + 1))),
        ("X", lambda: bags(X)),
        ("X", lambda: bags([])),
        ("Y", lambda: UOTMIL((D,)).compute_loss([1, 0], BAGS)),
        ("Y", lambda: UOTMIL((D,)).compute_loss(ones(3), BAGS)),
    ],
)
def test_refused(argument, call):
    with pytest.raises((ValueError, TypeError), match=f"^{argument}: "):
        call()
