"""Swapping the pool of vision transformers, on the real models of timm and transformers."""

from __future__ import annotations

import copy
import io
import json
import pickle

import pytest
import torch
from torch import nn

from tests import tolerances as tol
from tests.beside_cpu import import_timm
from uotpool import AdaptiveUOTPool1d, load_swapped, param_groups, replace_global_pool, restore_pools
from uotpool.nn.tokens import TokenPool

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 4}
CONFIG = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    **{"image_size": 32, "patch_size": 8, "num_labels": 4},
}
WINDOWS = {"embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4}


def timm_model(name, **options):
    return lambda: import_timm().create_model(name, **options)


def vit(**options):
    """Make timm's VisionTransformer, the class behind its ViT, DeiT-III, SigLIP, DINOv2 and CLIP models."""
    return lambda: import_timm().models.VisionTransformer(**SIZE | options)


def hf(model, config, **options):
    def make():
        transformers = pytest.importorskip("transformers")
        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return make


def logits(model, x):
    out = model.eval()(x)
    if isinstance(out, torch.Tensor):
        return out
    return out["logits"] if "logits" in out else out["pooler_output"]


def pictures(side=32):
    return torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(1))


# What averages, by the name of the model: how it is made, where the layer is put, what the report says.
deit3 = SIZE | {"patch_size": 16}
AVERAGE = {
    "timm ViT": (vit(global_pool="avg"), "attn_pool", "attn_pool: the mean of tokens -> TokenPool("),
    "timm ViT, no class token": (vit(global_pool="avg", class_token=False), "attn_pool", "attn_pool: "),
    "timm ViT, registers": (vit(global_pool="avg", reg_tokens=4), "attn_pool", "attn_pool: "),
    "timm ViT, all tokens": (vit(global_pool="avg", pool_include_prefix=True), "attn_pool", "attn_pool: "),
    "timm ViT, no fc_norm": (vit(global_pool="avg", fc_norm=False), "attn_pool", "attn_pool: "),
    "timm DeiT-III": (
        timm_model("deit3_small_patch16_224", **deit3, global_pool="avg"),
        "attn_pool",
        "attn_pool: ",
    ),
    "timm EVA-02": (
        timm_model("eva02_tiny_patch14_224", **SIZE | {"patch_size": 16}),
        "attn_pool",
        "attn_pool: ",
    ),
    "timm BEiT": (
        timm_model("beit_base_patch16_224", **deit3),
        "norm.uotpool",
        "after norm: the mean of tokens",
    ),
    "timm Swin": (
        timm_model("swin_tiny_patch4_window7_224", img_size=32, num_classes=4, **WINDOWS),
        "head.global_pool.pool",
        "head.global_pool.pool: FastAdaptiveAvgPool() -> TokenPool(",
    ),
    "HF Swin": (
        hf("SwinForImageClassification", "SwinConfig", image_size=32, num_labels=4, **WINDOWS),
        "swin.pooler",
        "swin.pooler: AdaptiveAvgPool1d(output_size=1) -> AdaptiveUOTPool1d(",
    ),
    "HF Swin, no head": (hf("SwinModel", "SwinConfig", image_size=32, **WINDOWS), "pooler", "pooler: "),
    "HF DINOv2": (
        hf("Dinov2ForImageClassification", "Dinov2Config", **CONFIG),
        "dinov2.uotpool",
        "after dinov2: the class token, joined to the mean of tokens -> TokenPool(",
    ),
    "HF DINOv2, registers": (
        hf("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", **CONFIG),
        "dinov2_with_registers.uotpool",
        "after dinov2_with_registers: ",
    ),
    "HF SigLIP": (
        hf("SiglipForImageClassification", "SiglipConfig", vision_config=CONFIG, num_labels=4),
        "vision_model.uotpool",
        "after vision_model: ",
    ),
    "HF BEiT": (
        hf("BeitForImageClassification", "BeitConfig", **CONFIG),
        "beit.pooler.uotpool",
        "before beit.",
    ),
    "HF MobileViT": (
        hf("MobileViTForImageClassification", "MobileViTConfig", image_size=64, initializer_range=0.2),
        "mobilevit.uotpool",
        "pooled output of mobilevit: the mean of tokens",
    ),
}


@pytest.mark.parametrize(("make", "where", "said"), AVERAGE.values(), ids=AVERAGE)
def test_a_model_that_averages_computes_the_same(make, where, said):
    model, lines = make(), []
    x = pictures(64 if "mobilevit" in where else 32)
    before, names = logits(model, x), list(model.state_dict())
    assert replace_global_pool(model, start="mean", report=lines.append) is model
    layer = model.get_submodule(where)
    after = logits(model, x)
    torch.testing.assert_close(after, before, rtol=0, atol=tol.F32)
    assert len(lines) == 1
    assert lines[0].startswith(said)
    assert set(names) <= set(model.state_dict())  # trained weights have their names still
    # The layer has a gradient, and its output is what the head gets.
    after.sum().backward()
    assert layer.pool.raw_scale.grad.abs().max() > 0
    with torch.no_grad():
        layer.pool.raw_scale.fill_(3.0)
    assert not torch.equal(logits(model, x), after)


# What takes the class token alone: how it is made, where the layer is put, and the tokens that are none.
CLASS = {
    "timm ViT": (vit(), "attn_pool"),
    "timm ViT, registers": (vit(reg_tokens=2), "attn_pool"),
    "timm DeiT-III": (timm_model("deit3_small_patch16_224", **deit3), "attn_pool"),
    "timm CaiT": (timm_model("cait_xxs24_224", **SIZE | {"patch_size": 16}), "norm.uotpool"),
    "HF ViT": (hf("ViTForImageClassification", "ViTConfig", **CONFIG), "vit.uotpool"),
    "HF ViT, no head": (hf("ViTModel", "ViTConfig", **CONFIG), "pooler.uotpool"),
    "HF DINOv2, no head": (hf("Dinov2Model", "Dinov2Config", **CONFIG), "uotpool"),
    "HF DINOv3": (hf("DINOv3ViTModel", "DINOv3ViTConfig", **CONFIG, num_register_tokens=3), "uotpool"),
}


@pytest.mark.parametrize(("make", "where"), CLASS.values(), ids=CLASS)
def test_a_model_that_takes_its_class_token_is_asked_for_tokens(make, where):
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        ValueError, match=r'^tokens: expected "patches" or "all".*tokens="patches" pools the patch'
    ):
        replace_global_pool(model)
    assert model.state_dict().keys() == before.keys()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    replace_global_pool(model, tokens="patches", start="mean")
    assert isinstance(model.get_submodule(where), TokenPool)
    assert logits(model, pictures()).isfinite().all()


def test_which_tokens_are_pooled_in_timm():
    """The mean of patches or of all tokens, computed from the features that timm gives."""
    for tokens, first in (("patches", 3), ("all", 0)):
        model = vit(reg_tokens=2)().eval()
        with torch.no_grad():
            features = model.forward_features(pictures())
            expected = model.head(features[:, first:].mean(1))
            replace_global_pool(model, tokens=tokens, start="mean")
            torch.testing.assert_close(model(pictures()), expected, rtol=0, atol=tol.F32)
        # A pool at timm's own place leaves the features alone.
        if tokens == "patches":
            assert torch.equal(model.forward_features(pictures()), features)


def test_which_tokens_are_pooled_in_transformers():
    for tokens, first in (("patches", 1), ("all", 0)):
        model = CLASS["HF ViT"][0]().eval()
        with torch.no_grad():
            hidden = model.vit(pictures()).last_hidden_state
            expected = model.classifier(hidden[:, first:].mean(1))
            replace_global_pool(model, tokens=tokens, start="mean")
            torch.testing.assert_close(model(pictures()).logits, expected, rtol=0, atol=tol.F32)
            torch.testing.assert_close(model(pictures(), return_dict=False)[0], expected, rtol=0, atol=tol.F32)
    # DINOv2: the class token stays beside the mean of all tokens.
    model = AVERAGE["HF DINOv2"][0]().eval()
    with torch.no_grad():
        hidden = model.dinov2(pictures()).last_hidden_state
        expected = model.classifier(torch.cat((hidden[:, 0], hidden.mean(1)), 1))
        replace_global_pool(model, tokens="all", start="mean")
        torch.testing.assert_close(model(pictures()).logits, expected, rtol=0, atol=tol.F32)


def test_the_pooled_output_of_a_model_of_transformers():
    model = CLASS["HF DINOv3"][0]().eval()
    with torch.no_grad():
        hidden = model(pictures()).last_hidden_state
        replace_global_pool(model, tokens="patches", start="mean")
        out = model(pictures())
        torch.testing.assert_close(out.pooler_output, hidden[:, 4:].mean(1), rtol=0, atol=tol.F32)
        assert torch.equal(out.last_hidden_state, hidden)
        assert torch.equal(model(pictures(), return_dict=False)[1], out.pooler_output)
    model = CLASS["HF ViT, no head"][0]().eval()
    with torch.no_grad():
        hidden = model(pictures()).last_hidden_state
        replace_global_pool(model, tokens="patches", start="mean")
        out = model(pictures())
        expected = model.pooler.dense(hidden[:, 1:].mean(1)).tanh()
        torch.testing.assert_close(out.pooler_output, expected, rtol=0, atol=tol.F32)


MAP = {
    "timm ViT": (vit(global_pool="map"), "attn_pool"),
    "timm SigLIP": (
        timm_model("vit_base_patch16_siglip_224", **SIZE | {"patch_size": 16}),
        "attn_pool",
    ),
    "HF SigLIP": (hf("SiglipVisionModel", "SiglipVisionConfig", **CONFIG), "head"),
}


@pytest.mark.parametrize(("make", "where"), MAP.values(), ids=MAP)
def test_an_attention_pool_is_swapped_whole(make, where):
    model, lines = make(), []
    old = type(model.get_submodule(where)).__name__
    replace_global_pool(model, report=lines.append)
    assert lines[0].startswith(f"{where}: {old} -> TokenPool(16, ")
    assert isinstance(model.get_submodule(where), TokenPool)
    assert logits(model, pictures()).isfinite().all()
    assert not [name for name in model.state_dict() if name.startswith(f"{where}.") and ".pool." not in name]
    with pytest.raises(ValueError, match=r"^start: expected none.*tokens=\"patches\" says"):
        replace_global_pool(make(), start="mean")
    model = make().eval()
    seen = []
    model.get_submodule(where).register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    logits(model, pictures())
    replace_global_pool(model, tokens="patches", start="mean")
    pooled = model.get_submodule(where)(seen[0])
    torch.testing.assert_close(pooled, seen[0].mean(1), rtol=0, atol=tol.F32)


SWAPS = {
    "timm ViT": (AVERAGE["timm ViT"][0], {}),
    "timm ViT, token": (CLASS["timm ViT"][0], {"tokens": "all"}),
    "timm SigLIP": (MAP["timm SigLIP"][0], {}),
    "timm Swin": (AVERAGE["timm Swin"][0], {}),
    "HF ViT": (CLASS["HF ViT"][0], {"tokens": "patches"}),
    "HF DINOv2": (AVERAGE["HF DINOv2"][0], {}),
    "HF DINOv2, no head": (CLASS["HF DINOv2, no head"][0], {"tokens": "patches"}),
    "HF Swin": (AVERAGE["HF Swin"][0], {}),
    "HF BEiT": (AVERAGE["HF BEiT"][0], {}),
}


def trained(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("make", "options"), SWAPS.values(), ids=SWAPS)
def test_a_swap_is_saved_copied_and_restored(make, options, tmp_path):
    model = trained(replace_global_pool(make(), **options)).eval()
    expected = logits(model, pictures())
    file = io.BytesIO()
    torch.save({"pools": model.uotpool_swaps, "weights": model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for record in (saved["pools"], json.loads(json.dumps(model.uotpool_swaps))):
        other = restore_pools(make(), record)
        other.load_state_dict(saved["weights"])
        assert torch.equal(logits(other, pictures()), expected)
        names = [name for name, _ in other.named_modules()]
        restore_pools(other)  # what is there stays, and no hook is added twice
        assert [name for name, _ in other.named_modules()] == names
        assert torch.equal(logits(other, pictures()), expected)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(logits(other, pictures()), expected)
        with torch.no_grad():  # the copy has a layer of its own
            layer = next(m for m in other.modules() if isinstance(m, (TokenPool, AdaptiveUOTPool1d)))
            layer.pool.raw_scale.add_(1.0)
        assert not torch.equal(logits(other, pictures()), expected)
        assert torch.equal(logits(model, pictures()), expected)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(tmp_path)
        loaded = load_swapped(type(model), tmp_path)
        assert torch.equal(logits(loaded, pictures()), expected)


@pytest.mark.parametrize("name", ["timm ViT", "HF ViT"])
def test_swapped_models_compile_and_train(name):
    """`fullgraph` fails on anything that breaks the graph, as a hook might; "eager" needs no C++ compiler."""
    make, options = SWAPS[name]
    model = replace_global_pool(make(), start="mean", **options).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(logits(compiled, pictures()), logits(model, pictures()), rtol=0, atol=tol.F32)
    layer = next(m for m in model.modules() if isinstance(m, TokenPool))
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.1), lr=1e-3)
    logits(model.train(), pictures()).square().sum().backward()
    optimizer.step()
    assert layer.pool.raw_scale.abs().max() > 0


def test_dtype_device_and_mode_stay():
    model = AVERAGE["timm ViT"][0]().bfloat16().train()
    replace_global_pool(model, start="mean")
    assert model.attn_pool.pool.raw_scale.dtype == torch.bfloat16
    assert all(module.training for module in model.modules())
    half = CLASS["HF ViT"][0]().bfloat16()
    with pytest.raises(ValueError, match="takes the class token alone"):  # in half precision too
        replace_global_pool(half)
    replace_global_pool(half, tokens="patches")
    assert logits(half, pictures().bfloat16()).dtype == torch.bfloat16
    model = AVERAGE["HF DINOv2"][0]().double().train()
    model.dinov2.layernorm.eval()
    replace_global_pool(model, start="mean")
    assert model.dinov2.uotpool.pool.raw_scale.dtype == torch.float64
    assert model.dinov2.uotpool.training
    assert not model.dinov2.layernorm.training
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert [n for n, m in model.named_modules() if m._forward_hooks] == ["dinov2"]


class Own(nn.Module):
    """Somebody's own transformer, whose blocks are an nn.Sequential and whose pool is a choice."""

    def __init__(self, pool):
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, 8, 8, 8), nn.Parameter(torch.randn(1, 1, 8))
        self.blocks = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), nn.LayerNorm(8))
        self.pool, self.head = pool, nn.Linear(8, 4)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = self.blocks(torch.cat((self.cls.expand(len(x), -1, -1), x), 1))
        return self.head(self.pool(x))


class Call(nn.Module):
    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.inside = function, nn.Sequential(*modules)

    def forward(self, x):
        return self.function(self.inside(x))


def own(function):
    """Make a network that pools by a plain function."""
    model = Own(nn.Identity())
    del model.pool
    model.pool = function
    return model


@pytest.mark.parametrize(
    ("make", "where", "options"),
    [
        (lambda: own(lambda x: x[:, 1:].mean(1)), "blocks.1.uotpool", {}),
        (lambda: own(lambda x: x.mean(1)), "blocks.1.uotpool", {}),
        (lambda: own(lambda x: x[:, 0]), "blocks.1.uotpool", {"tokens": "patches"}),
        (lambda: Own(Call(lambda x: x[:, 1:].mean(1), nn.LayerNorm(8))), "pool.inside.0.uotpool", {}),
        (lambda: Own(Call(lambda x: x[:, 2:].amax(1), nn.LayerNorm(8))), "pool", {"name": "pool"}),
    ],
    ids=["patches", "all", "class", "module", "named"],
)
def test_somebodys_own_transformer(make, where, options):
    model = make()
    before = logits(model, pictures())
    start = {} if "name" in options else {"start": "mean"}
    replace_global_pool(model, example=pictures()[:1], **options, **start)
    assert isinstance(model.get_submodule(where), TokenPool)
    if not options:
        torch.testing.assert_close(logits(model, pictures()), before, rtol=0, atol=tol.F32)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (vit(), {"tokens": "patch"}, r"^tokens: expected one of 'patches', 'all', got 'patch'"),
        (
            AVERAGE["timm Swin"][0],
            {"tokens": "patches"},
            r"^tokens: expected None, as 'head.global_pool.pool' pools positions of a feature map",
        ),
        (
            AVERAGE["timm Swin"][0],
            {"example": torch.zeros(1, 3, 32, 32)},
            r"^example: expected a picture on which tokens differ",
        ),
        (AVERAGE["timm ViT"][0], {"name": "pool"}, r"^name: expected one of .*got 'pool'"),
        (AVERAGE["timm ViT"][0], {"example": torch.zeros(1, 3, 8, 8)}, r"^example: expected an input that"),
        (vit(global_pool="max"), {}, r"^model: expected one global average pool.*name=\.\.\. names a module"),
        (vit(global_pool=""), {}, r"^model: expected one global average pool"),
        (
            timm_model("deit_tiny_distilled_patch16_224", **SIZE | {"patch_size": 16}),
            {"tokens": "patches"},
            r"^model: expected a network that uses the tokens of 'norm' for its pool alone.*head of your own",
        ),
        (lambda: vit(global_pool="avg")().to("meta"), {}, r"^model: expected values.*meta device"),
        (hf("ViTMAEModel", "ViTMAEConfig", **CONFIG), {}, r"^model: expected one global average pool"),
    ],
    ids=["option", "swin", "zeros", "name", "size", "max", "none", "distilled", "meta", "no pool"],
)
def test_errors_name_the_way_out(make, options, message):
    model = make()
    names = list(model.state_dict())
    with pytest.raises(ValueError, match=message):
        replace_global_pool(model, **options)
    assert list(model.state_dict()) == names
    assert not hasattr(model, "uotpool_swaps")
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_second_swap_says_that_it_is_one():
    model = replace_global_pool(AVERAGE["timm ViT"][0]())
    with pytest.raises(ValueError, match=r"swapped already: attn_pool \(TokenPool\)"):
        replace_global_pool(model)


GOOD = {"name": "norm", "layer": "TokenPool", "options": {"dim": 16}, "not_recorded": [], "place": "after"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"place": "forward"}, r"^record: place: expected one of 'before', 'after', 'output'"),
        ({"layer": "UOTPool2d"}, r"^record: layer: expected one of 'TokenPool'"),
        ({"name": "norms"}, r"^record: expected names of layers of the model, got 'norms'"),
    ],
)
def test_a_record_that_is_none(entry, message):
    with pytest.raises(ValueError, match=message):
        restore_pools(vit()(), [GOOD | entry])


# --- the layer itself


def test_the_layer_in_all_its_shapes():
    x = torch.randn(2, 7, 4)
    layer = TokenPool(4, skip=2, start="mean")
    torch.testing.assert_close(layer(x), x[:, 2:].mean(1))
    assert layer.plan(x).shape == (2, 5, 4)
    out = TokenPool(4, skip=1, lead=2, start="mean")(x)
    torch.testing.assert_close(out, torch.cat((x[:, :2], x[:, 1:].mean(1, keepdim=True)), 1))
    maps = torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(TokenPool(4, start="mean")(maps), maps.mean((1, 2)))
    torch.testing.assert_close(TokenPool(4, lead=0, start="mean")(maps), maps.mean((1, 2), keepdim=True))
    second = TokenPool(3, lead=0, channels_last=False, start="mean")
    torch.testing.assert_close(second(maps), maps.mean((2, 3), keepdim=True))
    assert repr(second).startswith("TokenPool(\n  lead=0, channels_last=False")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TokenPool(4, skip=-1), "skip: expected an integer >= 0"),
        (lambda: TokenPool(4, lead=-1), "lead: expected an integer >= 0"),
        (lambda: TokenPool(4, channels_last="yes"), "channels_last: expected a bool"),  # type: ignore[arg-type]
        (lambda: TokenPool(4)(torch.ones(2, 3, 5)), "x: expected floating tokens"),
        (lambda: TokenPool(4)(torch.ones(2, 4)), "x: expected floating tokens"),
        (lambda: TokenPool(4, skip=3)(torch.ones(2, 3, 4)), "x: expected more than the 3 tokens"),
    ],
)
def test_errors_of_the_layer(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


# --- the example


def test_the_example_learns(capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("transformers")
    from examples.vit_pool import main

    found = main(["--pools", "uot", "--seeds", "0", "--epochs", "5"])
    assert found["uot"][0] > 0.25  # a tenth would be chance; thirty epochs, the default, take a minute
    assert capsys.readouterr().out.startswith("uot ")
