"""Swapping the pools of a network."""

from __future__ import annotations

import io
import json
import logging

import numpy as np
import pytest
import torch
from torch import nn

from tests import tolerances as tol
from uotpool import (
    AdaptiveUOTPool2d,
    SamplePrior,
    UOTPool2d,
    load_swapped,
    replace_global_pool,
    replace_local_pools,
    restore_pools,
)


def hugging_face():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=4
    )
    return transformers.ResNetForImageClassification(config)


class Torchvision(nn.Module):
    """Named and built as torchvision's ResNet is."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = self.layer1(self.maxpool(self.bn1(self.conv1(x)).relu()))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class SelectPool(nn.Module):
    """Built as timm's SelectAdaptivePool2d: the pool, then flattened."""

    def __init__(self):
        super().__init__()
        self.pool, self.flatten = nn.AdaptiveAvgPool2d(1), nn.Flatten(1)

    def forward(self, x):
        return self.flatten(self.pool(x))


class Timm(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AvgPool2d(2, 2, ceil_mode=True))
        self.global_pool, self.fc = SelectPool(), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(self.global_pool(self.stem(x)))


def logits(model, x):
    out = model.eval()(x)
    return out if isinstance(out, torch.Tensor) else out.logits


def picture(dtype=torch.float32):
    return torch.randn(2, 3, 48, 40, generator=torch.Generator().manual_seed(0)).to(dtype)


SHAPED = {"resnet.pooler": hugging_face, "avgpool": Torchvision, "global_pool.pool": Timm}


@pytest.mark.parametrize(("name", "make"), SHAPED.items(), ids=SHAPED)
def test_the_global_pool_is_found_and_can_start_as_it_was(name, make):
    model, said = make(), []
    expected = logits(model, picture())
    assert replace_global_pool(model, start="mean", report=said.append) is model
    pool = model.get_submodule(name)
    assert isinstance(pool, AdaptiveUOTPool2d)
    torch.testing.assert_close(logits(model, picture()), expected, rtol=0, atol=tol.F32)
    logits(model, picture()).square().sum().backward()
    assert pool.pool.raw_scale.grad.abs().max() > 0
    (line,) = said
    assert line.startswith(f"{name}: AdaptiveAvgPool2d(")
    assert "-> AdaptiveUOTPool2d(" in line


@pytest.mark.parametrize(("name", "make"), SHAPED.items(), ids=SHAPED)
def test_options_reach_the_layer(name, make):
    model = replace_global_pool(make(), solver="badmm-e", K=2, alpha0=0.5)
    pool = model.get_submodule(name).pool
    assert (pool.options.solver.name, pool.K, pool.alpha0.item()) == ("badmm-e", 2, 0.5)


def test_dtype_mode_and_everything_else_stay():
    model = Torchvision().double().train()
    model.bn1.eval()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    replace_global_pool(model)
    assert all(p.dtype == torch.float64 for p in model.parameters())
    assert model.training
    assert model.avgpool.training
    assert not model.bn1.training
    after = model.state_dict()
    assert all(torch.equal(after[n], v) for n, v in before.items())
    assert not any(m._forward_hooks for m in model.modules())
    abstract = replace_global_pool(Torchvision().to("meta"))
    assert all(p.is_meta for p in abstract.parameters())


def test_the_default_report_is_a_logger():
    logger, text = logging.getLogger("uotpool"), io.StringIO()
    handler, level = logging.StreamHandler(text), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        replace_global_pool(Torchvision())
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert "avgpool: AdaptiveAvgPool2d" in text.getvalue()


def test_a_fixed_average_over_all_positions_is_global():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(4, 2))
    replace_global_pool(net, example=torch.zeros(1, 1, 8, 8))
    assert isinstance(net[1], AdaptiveUOTPool2d)


def test_a_pool_with_two_names_is_swapped_under_both():
    net = Torchvision()
    net.again = net.avgpool
    replace_global_pool(net)
    assert net.again is net.avgpool
    assert isinstance(net.again, AdaptiveUOTPool2d)


def squeeze():
    """A network with a squeeze-and-excitation block: two global average pools."""
    net = Torchvision()
    net.layer1.add_module("squeeze", Squeeze(16))
    return net


class Squeeze(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Conv2d(dim, dim, 1)

    def forward(self, x):
        return x * self.fc(self.pool(x)).sigmoid()


class TwoHeads(Torchvision):
    """Each of its two outputs has a global average pool of its own."""

    def __init__(self):
        super().__init__()
        self.second = nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        x = self.layer1(self.conv1(x))
        return self.fc(self.avgpool(x).flatten(1)), self.fc(self.second(x.square()).flatten(1))


def test_the_last_pool_is_told_from_those_of_gates():
    """By values: a gate's pool decides no output alone."""
    net, said = squeeze(), []
    expected = logits(net, picture())
    replace_global_pool(net, start="mean", report=said.append)
    assert isinstance(net.avgpool, AdaptiveUOTPool2d)
    assert isinstance(net.layer1.squeeze.pool, nn.AdaptiveAvgPool2d)
    assert len(said) == 1
    torch.testing.assert_close(logits(net, picture()), expected, rtol=0, atol=tol.F32)
    net = replace_global_pool(squeeze(), name="layer1.squeeze.pool")
    assert isinstance(net.layer1.squeeze.pool, AdaptiveUOTPool2d)
    assert isinstance(net.avgpool, nn.AdaptiveAvgPool2d)


class Gated(nn.Module):
    """A gate that is a layer, and a last pool that is code or nothing that is known."""

    def __init__(self, pool=lambda x: x.mean((2, 3)), last=True):
        super().__init__()
        self.conv, self.squeeze = nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(1)
        self.gate, self.conv2 = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, 2) if last else nn.Identity()
        self.pool, self.head = pool, nn.Linear(8, 4)

    def forward(self, x):
        x = self.conv(x)
        return self.head(self.pool(self.conv2(x * self.gate(self.squeeze(x)).sigmoid())))


@pytest.mark.parametrize("last", [True, False])
def test_a_gate_is_not_taken_for_the_pool(last):
    net, said = Gated(last=last), []
    expected = logits(net, picture())
    replace_global_pool(net, start="mean", report=said.append)
    assert isinstance(net.squeeze, nn.AdaptiveAvgPool2d)
    assert said[0].startswith("after conv2: the mean of tokens")
    torch.testing.assert_close(logits(net, picture()), expected, rtol=0, atol=tol.F32)
    with torch.no_grad():
        net.conv2.uotpool.pool.raw_scale.fill_(3.0)
    assert not torch.equal(logits(net, picture()), expected)
    with pytest.raises(
        ValueError, match=r"got 'squeeze' \(Adaptive.*decides no output alone.*name=\.\.\. swaps it"
    ):
        replace_global_pool(Gated(lambda x: x.amax((2, 3)), last))
    assert isinstance(replace_global_pool(Gated(), name="squeeze").squeeze, AdaptiveUOTPool2d)


def test_of_several_last_pools_one_has_to_be_named():
    with pytest.raises(ValueError, match=r"got 'avgpool' .*'second' .*say which by name="):
        replace_global_pool(TwoHeads())
    net = replace_global_pool(TwoHeads(), name="second")
    assert isinstance(net.second, AdaptiveUOTPool2d)
    assert isinstance(net.avgpool, nn.AdaptiveAvgPool2d)
    in_series = conv(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1))
    assert [type(m) for m in replace_global_pool(in_series)][1::2] == [AdaptiveUOTPool2d, nn.AdaptiveAvgPool2d]


class ByKeyword(Torchvision):
    def forward(self, x):
        return self.fc(self.avgpool(input=self.layer1(self.conv1(x))).flatten(1))


def test_a_pool_that_is_called_by_keyword():
    with pytest.raises(ValueError, match="model: expected a pool that gets its input by position"):
        replace_global_pool(ByKeyword())


def test_local_pools_keep_their_geometry():
    model, said = Torchvision(), []
    shape = logits(model, picture()).shape
    replace_local_pools(model, report=said.append)
    pool = model.maxpool
    assert isinstance(pool, UOTPool2d)
    assert (pool.kernel_size, pool.stride, pool.padding) == ((3, 3), (2, 2), (1, 1))
    assert isinstance(model.avgpool, nn.AdaptiveAvgPool2d)
    assert logits(model, picture()).shape == shape
    assert len(said) == 1
    model = Timm()
    expected = logits(model, picture())
    replace_local_pools(model, start="mean")
    assert model.stem[2].ceil_mode
    torch.testing.assert_close(logits(model, picture()), expected, rtol=0, atol=tol.F32)


def test_local_pools_by_name():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(3))
    replace_local_pools(net, names=["2", "3"])
    assert [type(m) for m in net[1:]] == [nn.MaxPool2d, UOTPool2d, AdaptiveUOTPool2d]


class Twice(Torchvision):
    """One max pool after two convolutions of other widths."""

    def forward(self, x):
        x = self.maxpool(self.layer1(self.maxpool(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def test_a_pool_with_two_widths_is_in_nobodys_way():
    assert isinstance(replace_global_pool(Twice()).avgpool, AdaptiveUOTPool2d)
    with pytest.raises(ValueError, match="model: expected a pool that gets one number of channels"):
        replace_local_pools(Twice())


class Padded(nn.MaxPool2d):
    """As those of transformers' BiT and of timm that pad by themselves."""

    def forward(self, x):
        return super().forward(nn.functional.pad(x, (0, 1, 0, 1)))


def test_a_pool_with_a_forward_of_its_own_is_left_alone():
    net = conv(Padded(2), nn.MaxPool2d(2))
    replace_local_pools(net)
    assert [type(m) for m in net[1:]] == [Padded, UOTPool2d]


def test_the_last_max_pool_of_a_small_picture_is_local():
    net = conv(nn.MaxPool2d(2), nn.MaxPool2d(3))
    replace_local_pools(net, example=torch.zeros(1, 3, 8, 8))
    assert [type(m) for m in net[1:]] == [UOTPool2d, UOTPool2d]


def test_dtype_of_what_is_pooled():
    net = nn.Sequential(nn.Conv2d(3, 4, 3).double(), Float(), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1))
    assert all(p.dtype == torch.float32 for p in replace_global_pool(net)[3].parameters())


class Float(nn.Module):
    def forward(self, x):
        return x.float()


def small(layer):
    """A network that sees pictures of 8 x 8 and what to call with it."""
    return {"make": lambda: nn.Sequential(nn.Conv2d(3, 4, 1), layer), "example": torch.zeros(1, 3, 8, 8)}


def fails(make, **kwargs):
    return lambda: replace_global_pool(make(), **kwargs)


def fails_local(make, **kwargs):
    return lambda: replace_local_pools(make(), **kwargs)


def conv(*more):
    return nn.Sequential(nn.Conv2d(3, 4, 3), *more)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (fails(lambda: conv(nn.ReLU())), "model: expected one global average pool"),
        (fails(lambda: conv(nn.AdaptiveMaxPool2d(1))), "model: expected one global average pool"),
        (fails(lambda: conv(nn.AdaptiveAvgPool2d(1)), name="2"), "name: expected one of"),
        (fails(lambda: conv(nn.AdaptiveAvgPool2d(1)), example=torch.zeros(1, 5, 8, 8)), "example: expected"),
        (fails(lambda: nn.Linear(3, 3)), "example: expected to be given"),
        (fails(nn.ReLU), "model: expected a network with parameters"),
        (fails(lambda: None), "model: expected a network"),
        (fails(lambda: conv(nn.AdaptiveAvgPool2d(1)), solver="newton"), "solver: expected"),
        (fails_local(lambda: conv(nn.ReLU())), "model: expected at least one"),
        (fails_local(lambda: conv(nn.AdaptiveAvgPool2d(1))), "model: expected at least one"),
        (fails_local(lambda: conv(nn.MaxPool2d(2)), names=["0"]), "names: expected some of"),
        (fails_local(lambda: conv(nn.MaxPool2d(2)), names="1"), "names: expected a list"),
        (fails_local(lambda: conv(nn.MaxPool2d(2)), start="mean"), "start: expected none"),
        (fails_local(lambda: conv(nn.AvgPool2d(3, 2, 1)), start="mean"), "start: "),
        (fails_local(lambda: conv(nn.MaxPool2d(2, dilation=2))), "model: '1' is"),
        (fails_local(lambda: conv(nn.AdaptiveMaxPool2d(3, return_indices=True))), "model: '1' is"),
        (fails(**small(nn.AvgPool2d(5))), "model: expected one global average pool"),
        (fails(**small(nn.AvgPool2d(9, padding=4))), "model: expected one global average pool"),
        (fails(**small(nn.AvgPool2d(12, padding=4)), start="mean"), "start: expected none"),
        (fails(**small(nn.AvgPool2d(8, divisor_override=1)), start="mean"), "start: expected none"),
        (
            fails(lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Linear(1, 1))),
            "example: expected to be given",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_failure_changes_nothing():
    net = TwoHeads().train()
    with pytest.raises(ValueError, match="name="):
        replace_global_pool(net)
    with pytest.raises(ValueError, match="example"):
        replace_global_pool(net, example=torch.zeros(1, 9, 8, 8))
    no_conv = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Linear(1, 1))
    with pytest.raises(ValueError, match="example"):
        replace_global_pool(no_conv)
    assert not any(m._forward_hooks for m in no_conv.modules())
    assert isinstance(net.avgpool, nn.AdaptiveAvgPool2d)
    assert all(m.training for m in net.modules())
    assert not any(m._forward_hooks for m in net.modules())


# --- messages on what was found instead


def test_a_second_swap_says_that_it_is_one():
    net = replace_local_pools(replace_global_pool(Torchvision()))
    layers = r"swapped already: maxpool \(UOTPool2d\), avgpool \(AdaptiveUOTPool2d\)"
    with pytest.raises(ValueError, match=rf"global pool was not swapped, got .*{layers}; build it anew"):
        replace_global_pool(net)
    with pytest.raises(ValueError, match=rf"got a model whose pools were {layers}$"):
        replace_local_pools(net)
    net = replace_global_pool(squeeze(), name="avgpool")
    with pytest.raises(
        ValueError, match=r"already: avgpool .*name=\.\.\. swaps another one of 'layer1\.squeeze\.pool"
    ):
        replace_global_pool(net)
    replace_global_pool(net, name="layer1.squeeze.pool")
    assert [type(m) for m in (net.avgpool, net.layer1.squeeze.pool)] == [AdaptiveUOTPool2d] * 2
    assert isinstance(replace_global_pool(replace_local_pools(Torchvision())).avgpool, AdaptiveUOTPool2d)


@pytest.mark.parametrize(
    "option", [{"skip": 3}, {"lead": None}, {"dim": 8}, {"kernel_size": 2}, {"alpha_0": 1.0}]
)
def test_options_that_are_none_of_the_pooling(option):
    (name,) = option
    message = rf"^uot: expected options of UOTPooling, one of solver, K, .*, got '{name}'"
    for swap in (replace_global_pool, replace_local_pools):
        with pytest.raises(ValueError, match=message):
            swap(Torchvision(), **option)
    with pytest.raises(ValueError, match=message):
        restore_pools(Torchvision(), [GOOD], **option)


def compiled_in_place():
    net = Torchvision()
    net.layer1.compile(backend="eager")
    return net


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: torch.compile(Torchvision(), backend="eager"), "that is"),
        (compiled_in_place, "whose 'layer1' is"),
    ],
)
def test_a_compiled_network_is_refused(make, where):
    """Its program would go on without the new layers."""
    for swap in (replace_global_pool, replace_local_pools, lambda net: restore_pools(net, [GOOD])):
        with pytest.raises(
            ValueError, match=rf"^model: .*not compiled yet.*{where} compiled: swap before compiling"
        ):
            swap(make())


# --- saved and loaded


def trained(model):
    """Return the network with weights that no fresh layer has."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    return model


OPTIONS = {
    "learned": {"start": "mean", "shared": True},
    "fixed": {"alpha0": 0.1, "alpha1": [1.0, 2.0], "K": 2, "solver": "sinkhorn"},
    "tensor": {
        "solver": "badmm-e",
        "K": 2,
        "rho": torch.tensor([0.5, 1.0]),
        "alpha0": None,
        "init": {"alpha0": 0.3},
        "p0": "learned",
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_record_brings_the_pools_back(options):
    """As JSON, and beside the weights in a file that is loaded without pickled code."""
    model = replace_global_pool(Torchvision(), **options)
    model = trained(replace_local_pools(model, solver="sinkhorn", K=1))
    expected = logits(model, picture())
    file = io.BytesIO()
    torch.save({"pools": model.uotpool_swaps, "weights": model.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    for record in (saved["pools"], json.loads(json.dumps(model.uotpool_swaps))):
        other = restore_pools(Torchvision(), record)
        other.load_state_dict(saved["weights"])
        assert torch.equal(logits(other, picture()), expected)
        assert repr(other) == repr(model)
        assert other.uotpool_swaps == model.uotpool_swaps
        assert restore_pools(other).avgpool is other.avgpool  # what is there stays


def test_the_record_stays_true_of_pools_that_stay():
    whole = replace_global_pool(Torchvision(), solver="sinkhorn", K=3)
    model = replace_local_pools(Torchvision(), solver="sinkhorn", K=1)
    local = list(model.uotpool_swaps)
    restore_pools(model, whole.uotpool_swaps)
    assert model.uotpool_swaps == local + whole.uotpool_swaps
    restore_pools(model, [entry | {"options": entry["options"] | {"K": 7}} for entry in whole.uotpool_swaps])
    assert model.uotpool_swaps == local + whole.uotpool_swaps


def test_numbers_of_numpy_are_recorded_as_plain_ones():
    model = replace_global_pool(Torchvision(), solver="sinkhorn", K=np.int64(3), alpha1=np.float32(0.5))
    options = json.loads(json.dumps(model.uotpool_swaps))[0]["options"]
    assert type(options["K"]) is int
    restore_pools(Torchvision(), model.uotpool_swaps)


class First(nn.Module):
    """Somebody's own prior."""

    def forward(self, x):
        return x[..., :1]


def test_a_module_among_the_options_is_asked_for():
    model = replace_global_pool(Torchvision(), q0=First())
    json.dumps(model.uotpool_swaps)
    with pytest.raises(ValueError, match=r"^uot: expected q0=\.\.\., a module.*'avgpool', got none"):
        restore_pools(Torchvision(), model.uotpool_swaps)
    other = restore_pools(Torchvision(), model.uotpool_swaps, q0=First())
    other.load_state_dict(model.state_dict())
    assert torch.equal(logits(other, picture()), logits(model, picture()))


def test_a_record_has_every_option():
    """So that a saved swap stays what it is if a default changes, as it did after 0.1."""
    model = replace_local_pools(replace_global_pool(Torchvision(), q0=SamplePrior(16), alpha0=0.5), K=2)
    for entry in model.uotpool_swaps:
        layer = model.get_submodule(entry["name"])
        config = layer.pool.get_config()
        assert {option: entry["options"][option] for option in config} == config
        assert entry["not_recorded"] == []
    assert model.uotpool_swaps[0]["options"]["q0"] == "learned"  # our own prior is data
    assert model.uotpool_swaps[1]["options"]["kernel_size"] == [3, 3]
    old = [GOOD | {"options": {"dim": 16, "solver": "badmm-e"}}]  # as swaps were recorded before
    layer = restore_pools(Torchvision(), old).avgpool
    assert (layer.pool.options.solver.name, layer.pool.K) == ("badmm-e", 4)


GOOD = {"name": "avgpool", "layer": "AdaptiveUOTPool2d", "options": {"dim": 16}, "not_recorded": []}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "record: expected what `model.uotpool_swaps` was"),
        ("avgpool", "record: expected a list of dicts"),
        ([{"name": "avgpool"}], "record: expected a list of dicts"),
        ([GOOD | {"layer": "Linear"}], "record: layer: expected one of 'AdaptiveUOTPool2d'"),
        ([GOOD | {"name": "head.pool"}], "record: expected names of layers of the model, got 'head.pool'"),
        ([GOOD | {"name": "__class__"}], "record: expected names of layers"),
        ([GOOD | {"name": ""}], "record: expected names of layers"),
        ([GOOD | {"options": {"dim": 0}}], "dim: expected an integer >= 1"),
    ],
)
def test_a_record_that_is_none(record, message):
    """It may come from somebody else's file: nothing is called that is not one of the two layers."""
    net = Torchvision()
    with pytest.raises((ValueError, TypeError), match=message):
        restore_pools(net, record)
    assert isinstance(net.avgpool, nn.AdaptiveAvgPool2d)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_model_of_transformers_comes_back(tmp_path, options):
    """`from_pretrained` alone drops the weights of the pool, as its network has no place for them."""
    model = trained(replace_global_pool(hugging_face(), **options))
    model.save_pretrained(tmp_path)
    other = load_swapped(type(model), tmp_path)
    assert type(other) is type(model)
    assert torch.equal(logits(other, picture()), logits(model, picture()))
    other.save_pretrained(tmp_path / "again")  # and once more
    again = load_swapped(type(model), tmp_path / "again")
    assert torch.equal(logits(again, picture()), logits(model, picture()))


def test_loading_needs_a_class_of_transformers():
    with pytest.raises(TypeError, match=r"^cls: expected a class of models of transformers"):
        load_swapped(Torchvision, "nowhere")
