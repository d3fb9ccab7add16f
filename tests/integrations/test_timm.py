"""The pooling of timm's vision transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests import tolerances as tol
from tests.beside_cpu import import_timm
from uotpool import Sinkhorn, replace_global_pool

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 4}


def fill(model, **options):
    from uotpool.integrations.timm import fill_attn_pool

    return fill_attn_pool(model, **options)


def make(name="vit_tiny_patch16_224", **options):
    return import_timm().create_model(name, **SIZE | options).eval()


def pictures():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


# How many tokens at the front are not pooled, by name and options of the model.
PREFIX = {
    "ViT": (1, {"global_pool": "avg"}),
    "ViT, no class token": (0, {"global_pool": "avg", "class_token": False}),
    "ViT, registers": (3, {"global_pool": "avg", "reg_tokens": 2}),
    "ViT, all tokens": (0, {"global_pool": "avg", "pool_include_prefix": True}),
    "ViT that took its class token": (1, {}),
    "ViT with an attention head": (1, {"global_pool": "map"}),
    "EVA-02": (1, {"name": "eva02_tiny_patch14_224"}),
    "DeiT-III": (1, {"name": "deit3_small_patch16_224", "global_pool": "avg"}),
}


@pytest.mark.parametrize(("prefix", "options"), PREFIX.values(), ids=PREFIX)
@torch.no_grad()
def test_the_plan_is_that_of_the_tokens_that_the_model_pools(prefix, options):
    model = make(**options)
    features = model.forward_features(pictures())
    expected = model.forward_head(features)
    assert fill(model) is model
    mean = model.head(model.fc_norm(features[:, prefix:].mean(1)))
    torch.testing.assert_close(model(pictures()), mean, rtol=0, atol=tol.F32)
    if model.global_pool == "avg":
        torch.testing.assert_close(mean, expected, rtol=0, atol=tol.F32)
    assert torch.equal(model.forward_features(pictures()), features)
    model.attn_pool.pool.raw_scale.fill_(0.3)
    P = model.attn_pool.plan(features)
    assert P.shape == features[:, prefix:].shape
    pooled = (features[:, prefix:] * P).sum(1) / P.sum(1)
    torch.testing.assert_close(model.pool(features), pooled, rtol=0, atol=tol.F32)
    torch.testing.assert_close(model.attn_pool.scores(features), P.sum(2), rtol=0, atol=tol.F32)


def test_device_dtype_mode_and_options():
    model = fill(make().double().train(), solver=Sinkhorn(2))
    assert all(p.dtype == torch.float64 for p in model.attn_pool.parameters())
    assert model.attn_pool.training
    assert model.attn_pool.pool.solver == Sinkhorn(2)
    model.attn_pool = None  # the swap is undone
    assert model(pictures().double()).shape == (2, 4)


@pytest.mark.parametrize(
    ("model", "options", "argument"),
    [
        (lambda: nn.Linear(3, 3), {}, "model"),
        (lambda: make("deit_tiny_distilled_patch16_224"), {}, "model"),
        (lambda: make("cait_xxs24_224"), {}, "model"),
        (make, {"solver": "newton"}, "solver"),
        (make, {"report": 5}, "report"),
    ],
)
def test_what_is_refused(model, options, argument):
    import_timm()
    model = model()
    with pytest.raises((ValueError, TypeError), match=rf"^{argument}: |'{argument}'"):
        fill(model, **options)
    assert getattr(model, "attn_pool", None) is None


def test_the_other_swap_names_this_one():
    with pytest.raises(ValueError, match=r"uotpool\.integrations\.timm\.fill_attn_pool"):
        replace_global_pool(make(), example=pictures()[:1])
