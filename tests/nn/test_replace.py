"""Swapping the pools of finished networks, on models of torchvision, timm and transformers."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from tests import tolerances as tol
from tests.beside_cpu import import_timm
from uotpool import (
    AdaptiveUOTPool2d,
    Learned,
    Sinkhorn,
    UOTPool2d,
    param_groups,
    replace_global_pool,
    replace_local_pools,
)

SWIN = {"embed_dim": 8, "depths": (1, 1), "num_heads": (2, 2), "window_size": 4}
VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
CONFIG = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
    **{"image_size": 32, "patch_size": 8, "num_labels": 4},
}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}


def pictures(n=3, side=32, seed=0):
    return torch.randn(n, 3, side, side, generator=torch.Generator().manual_seed(seed))


def torchvision(name, **options):
    def make():
        import_timm()  # which sees to it that torchvision can be imported
        return getattr(pytest.importorskip("torchvision").models, name)(num_classes=4, **options)

    return make


def timm(name, **options):
    return lambda: import_timm().create_model(name, num_classes=4, **options)


def hugging_face(model, config, **options):
    def make():
        transformers = pytest.importorskip("transformers")
        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return make


def swap(**options):
    return lambda model: replace_global_pool(model, **options)


def slot(model):
    import_timm()
    from uotpool.integrations.timm import fill_attn_pool

    return fill_attn_pool(model)


def by_hand(encoder, prefix, layers=()):
    """Swap the pool of a transformer of transformers by the recipe of docs/use/vision-transformers.md."""

    def pooled(model):
        pytest.importorskip("sklearn")
        from examples.vit_pool import Pooled

        before = [model.get_submodule(name) for name in layers]
        return Pooled(getattr(model, encoder), nn.Sequential(*before, model.classifier), prefix)

    return pooled


EXAMPLE = {"example": pictures(1)}
MODELS = {
    "torchvision ResNet": (torchvision("resnet18"), swap()),
    "torchvision MobileNet, gates": (torchvision("mobilenet_v3_small"), swap(example=pictures(1, 64))),
    "timm ResNet": (timm("test_resnet"), swap()),
    "timm EfficientNet": (timm("test_efficientnet"), swap(name="global_pool")),
    "timm Swin": (timm("swin_tiny_patch4_window7_224", img_size=32, **SWIN), swap(**EXAMPLE)),
    "timm ViT": (timm("vit_tiny_patch16_224", **VIT, global_pool="avg", reg_tokens=2), slot),
    "timm EVA-02": (timm("eva02_tiny_patch14_224", **VIT), slot),
    "transformers ResNet": (
        hugging_face("ResNetForImageClassification", "ResNetConfig", **RESNET, num_labels=4),
        swap(name="resnet.pooler"),
    ),
    "transformers Swin": (
        hugging_face("SwinForImageClassification", "SwinConfig", image_size=32, num_labels=4, **SWIN),
        swap(**EXAMPLE),
    ),
    "transformers I-JEPA": (
        hugging_face("IJepaForImageClassification", "IJepaConfig", **CONFIG),
        by_hand("ijepa", 0),
    ),
    "transformers BEiT": (
        hugging_face("BeitForImageClassification", "BeitConfig", **CONFIG),
        by_hand("beit", 1, ["beit.pooler.layernorm"]),
    ),
}
# Those that do not average: they compute something else after the swap.
OTHERS = {
    "timm ViT, class token": (timm("vit_tiny_patch16_224", **VIT), slot),
    "timm SigLIP": (timm("vit_base_patch16_siglip_224", **VIT), slot),
    "transformers ViT": (
        hugging_face("ViTForImageClassification", "ViTConfig", **CONFIG),
        by_hand("vit", 1),
    ),
}


class Logits(nn.Module):
    """The model, to be exported: with its logits as a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        out = self.model(x)
        return out if isinstance(out, torch.Tensor) else out.logits


def logits(model, x):
    return Logits(model.eval())(x)


def trained(model, side=32):
    """Train the model for a few steps, so that it is not what it began as, statistics of batches included."""
    optimizer = torch.optim.AdamW(param_groups(model, weight_decay=0.01), lr=1e-3)
    model.train()
    for seed in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(Logits(model)(pictures(4, side, seed)), torch.arange(4))
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_a_swapped_network_computes_the_same_trains_reloads_and_exports(name):
    make, swapping = (MODELS | OTHERS)[name]
    side = 64 if "Net" in name else 32
    torch.manual_seed(0)
    model, x = trained(make(), side), pictures(2, side)
    before = logits(model, x)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model = swapping(model)
    assert any(parameter.endswith("raw_scale") for parameter, _ in model.named_parameters())
    if name in MODELS:
        torch.testing.assert_close(logits(model, x), before, rtol=0, atol=tol.F32)
        if not hasattr(model, "encoder"):
            assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    after = logits(trained(model, side), x)
    scale = next(value for key, value in model.named_parameters() if key.endswith("raw_scale"))
    assert scale.grad.abs().max() > 0
    assert scale.abs().max() > 0  # it has left the mean
    again = swapping(make())
    again.load_state_dict(model.state_dict())
    assert torch.equal(logits(again, x), after)
    exported = torch.export.export(Logits(model.eval()), (x,)).module()
    torch.testing.assert_close(exported(x), after, rtol=0, atol=tol.F32)


# --- which pool


class Gate(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        return x * self.fc(self.pool(x)).sigmoid()


class Net(nn.Module):
    """A convolution, a gate, and a global pool: a layer or a function."""

    def __init__(self, pool=None, gate=True):
        super().__init__()
        self.conv, self.gate = nn.Conv2d(3, 8, 3, 2), Gate(8) if gate else nn.Identity()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1) if pool is None else pool, nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.pool(self.gate(self.conv(x))).flatten(1))


def calls(**options):
    """Make a network whose pool is a call, as those of DenseNet and MNASNet are."""
    return Net(lambda x: x.mean((2, 3)), **options)


@dataclass
class Output:
    logits: torch.Tensor


class Boxed(Net):
    def forward(self, x):
        return Output(super().forward(x))


class TwoHeads(Net):
    def forward(self, x):
        return super().forward(x), self.gate(self.conv(x)).mean((2, 3))


def conv(*layers):
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers)


def is_ours(pool):
    return isinstance(pool, AdaptiveUOTPool2d)


@pytest.mark.parametrize("make", [Net, Boxed])
def test_the_pool_of_a_gate_is_not_taken_for_the_last_one(make):
    net = replace_global_pool(make(), example=pictures(1))
    assert is_ours(net.pool)
    assert not is_ours(net.gate.pool)
    net = replace_global_pool(make(), name="gate")  # which holds one pool
    assert is_ours(net.gate.pool)
    assert not is_ours(net.pool)


@pytest.mark.parametrize(
    ("make", "options", "argument"),
    [
        (Net, {}, "name"),
        (calls, {}, "name"),  # the only pooling layer is that of the gate
        (calls, {"example": pictures(1)}, "name"),
        (lambda: Boxed(lambda x: x.mean((2, 3))), {"example": pictures(1)}, "name"),
        (TwoHeads, {"example": pictures(1)}, "name"),
        (Net, {"name": "fc"}, "name"),
        (Net, {"name": ""}, "name"),
        (Net, {"name": 3}, "name"),
        (lambda: calls(gate=False), {}, "model"),
        (torchvision("densenet121"), {}, "model"),
        (lambda: conv(nn.AdaptiveMaxPool2d(1)), {}, "model"),
        (lambda: conv(nn.AdaptiveAvgPool2d(2)), {}, "model"),
        (lambda: conv(nn.AvgPool2d(30, divisor_override=1)), {"example": pictures(1)}, "model"),
        (lambda: conv(nn.AvgPool2d(29, padding=1)), {"example": pictures(1)}, "model"),
        (lambda: torch.compile(Net(), backend="eager"), {}, "model"),
        (lambda: None, {}, "model"),
        (Net, {"example": torch.zeros(1, 5, 8, 8)}, "example"),
        (Net, {"example": [1.0]}, "example"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.AdaptiveAvgPool1d(1)), {}, "example"),
        (lambda: conv(nn.AdaptiveAvgPool2d(1), nn.Flatten()), {"report": 5}, "report"),
        (lambda: conv(nn.AdaptiveAvgPool2d(1), nn.Flatten()), {"dim": 8}, "dim"),
        (lambda: conv(nn.AdaptiveAvgPool2d(1), nn.Flatten()), {"output_size": 2}, "output_size"),
        (lambda: conv(nn.AdaptiveAvgPool2d(1), nn.Flatten()), {"solver": "newton"}, "solver"),
    ],
)
def test_what_is_refused_leaves_the_network_as_it_was(make, options, argument):
    net = make()
    modules = {} if net is None else dict(net.named_modules())
    for i, module in enumerate(modules.values()):
        module.training = i % 2 == 0
    modes = [module.training for module in modules.values()]
    with pytest.raises((ValueError, TypeError), match=rf"^{argument}: |'{argument}'"):
        replace_global_pool(net, **options)
    if net is not None:
        assert dict(net.named_modules()) == modules
        assert [module.training for module in modules.values()] == modes
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules.values())


@pytest.mark.parametrize("gate", [False, True])
def test_a_pool_that_is_a_call_gets_the_lines_to_write(gate):
    with pytest.raises(ValueError, match=r"self\.pool = AdaptiveUOTPool2d\(channels, .*\)") as refused:
        replace_global_pool(calls(gate=gate))
    (line,) = (line for line in str(refused.value).splitlines() if "AdaptiveUOTPool2d" in line)
    net = calls(gate=gate)
    expected = logits(net, pictures())
    del net.pool
    exec(line.strip(), {"self": net, "channels": 8, "AdaptiveUOTPool2d": AdaptiveUOTPool2d, "Learned": Learned})
    torch.testing.assert_close(logits(net, pictures()), expected, rtol=0, atol=tol.F32)


def test_a_fixed_average_over_all_positions_is_global():
    net = conv(nn.AvgPool2d(30), nn.Flatten()).eval()
    expected = net(pictures())
    replace_global_pool(net, example=pictures(1))
    assert is_ours(net[1])
    torch.testing.assert_close(net(pictures()), expected, rtol=0, atol=tol.F32)


def test_device_dtype_modes_options_and_random_numbers():
    net = Net(gate=False).double().train()
    net.conv.eval()
    torch.manual_seed(0)
    replace_global_pool(net, solver=Sinkhorn(2), alpha0=0.5)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(1))
    assert all(p.dtype == torch.float64 for p in net.pool.parameters())
    assert (net.training, net.pool.training, net.conv.training) == (True, True, False)
    assert net.pool.pool.solver == Sinkhorn(2)
    assert net.pool.pool.coefficients()["alpha0"].item() == 0.5
    net = replace_global_pool(Net(gate=False).to("meta"))
    assert all(p.is_meta for p in net.parameters())
    other = replace_global_pool(Net(gate=False), scale=Learned(1.0))  # an option of the caller's wins
    assert (other.pool.pool.scales() > 0).all()


# --- local pools


def test_local_pools_keep_their_geometry_and_averages_compute_the_same():
    net = conv(nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2, ceil_mode=True), nn.AdaptiveAvgPool2d(1)).eval()
    shape = net(pictures()).shape
    local = replace_local_pools(copy.deepcopy(net))
    assert [type(m) for m in local[1:]] == [UOTPool2d, UOTPool2d, nn.AdaptiveAvgPool2d]
    assert (local[1].kernel_size, local[1].stride, local[1].padding) == ((3, 3), (2, 2), (1, 1))
    assert local[2].ceil_mode
    assert local(pictures()).shape == shape
    one = replace_local_pools(copy.deepcopy(net), names=["2"])
    assert [type(m) for m in one[1:]] == [nn.MaxPool2d, UOTPool2d, nn.AdaptiveAvgPool2d]
    torch.testing.assert_close(one(pictures()), net(pictures()), rtol=0, atol=tol.F32)


class Own(nn.MaxPool2d):
    """A subclass may pool otherwise, as those of timm that pad by themselves."""


@pytest.mark.parametrize(
    ("layers", "options", "argument"),
    [
        ([nn.AdaptiveAvgPool2d(1)], {}, "model"),
        ([Own(2)], {}, "model"),
        ([nn.MaxPool2d(2), nn.Conv2d(8, 4, 1), nn.MaxPool2d(2)], {"names": ["0"]}, "names"),
        ([nn.MaxPool2d(2)], {"names": "1"}, "names"),
        ([nn.MaxPool2d(2), nn.MaxPool2d(2, dilation=2)], {}, "names"),
        ([nn.AvgPool2d(3, 2, 1)], {}, "names"),
        ([nn.AvgPool2d(2, divisor_override=1)], {}, "names"),
        ([nn.MaxPool2d(2)], {"start": "mean", "q0": "learned"}, "start"),
        ([nn.MaxPool2d(2), nn.AvgPool2d(2)], {"stride": 2}, "stride"),
    ],
)
def test_what_is_refused_of_local_pools(layers, options, argument):
    net = conv(*layers)
    with pytest.raises((ValueError, TypeError), match=rf"^{argument}: |'{argument}'"):
        replace_local_pools(net, **options)
    assert list(net[1:]) == layers
