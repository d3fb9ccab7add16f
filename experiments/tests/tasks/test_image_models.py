"""Networks whose global pool is swapped, and the batches that they get."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from uotpool_experiments.datasets.images import Images
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.image import batches, models, pools
from uotpool_experiments.tasks.image.batches import DRAWS, Scaling, pictures
from uotpool_experiments.tasks.image.models import Classifier, Tail

from uotpool import AdaptiveUOTPool2d, UOTPool2d, replace_global_pool
from uotpool.zoo import ENTRIES, build

pytest.importorskip("transformers")
CPU = torch.device("cpu")


def make(arch: str = "resnet-tiny", classes: int = 10, size: int = 28, **changes) -> Classifier:
    given = {"small_stem": True, "trained": False, "weights": None} | changes
    return models.make(arch, 1 if arch == "resnet-tiny" else 3, classes, size, **given)


@pytest.fixture(scope="module")
def efficientnet() -> Classifier:
    for name in models.needed("efficientnet-lite0"):
        pytest.importorskip(name)
    return make("efficientnet-lite0", 10, 64, trained=True).eval()


# ---------------------------------------------------------------------------------------------------------
# networks


@pytest.mark.parametrize("local", models.LOCAL)
def test_cnn_with_each_local_pool(local):
    """All start from the same convolutions and have the same shapes; the pools learn."""
    torch.manual_seed(0)
    network = make("cnn", local=local)
    torch.manual_seed(0)
    plain = make("cnn")
    weights = [m.weight for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    others = [m.weight for m in plain.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    x = torch.randn(2, 3, 28, 28)
    assert network.features(x).shape == (2, 64, 7, 7)
    network(x).square().sum().backward()
    inside = [m for m in network.modules() if isinstance(m, UOTPool2d)]
    assert len(inside) == (2 if local.startswith("uotp") else 0)
    assert all(p.grad.abs().sum() > 0 for m in inside for p in m.parameters())


def test_resnet_tiny():
    network = make()
    assert network.features(torch.randn(2, 1, 28, 28)).shape == (2, 64, 7, 7)
    assert network.width == 64
    assert network(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert sum(p.numel() for p in network.parameters()) < 100_000


@pytest.mark.parametrize(
    ("arch", "width", "millions"),
    [
        ("resnet18", 512, 11.69),
        ("resnet34", 512, 21.80),
        ("resnet50", 2048, 25.56),
        ("resnet101", 2048, 44.55),
        ("resnet152", 2048, 60.19),
    ],
)
def test_resnets_are_those_of_imagenet(arch, width, millions):
    """Numbers of parameters as in torchvision's documentation."""
    with torch.device("meta"):
        network = make(arch, 1000, 224, small_stem=False)
    assert network.width == width
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.parametrize(("small", "side"), [(True, 4), (False, 1)])
def test_stem(small, side):
    network = make("resnet18", 10, 32, small_stem=small).eval()
    with torch.no_grad():
        assert network.features(torch.randn(1, 3, 32, 32)).shape == (1, 512, side, side)


def test_trained_efficientnet(efficientnet):
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = efficientnet.features(x)
        assert features.shape == (2, 1280, 2, 2)
        assert torch.allclose(Tail(efficientnet)(features), efficientnet(x), atol=1e-5)
        assert 0.1 < features.std() < 2  # of weights that were trained, ReLU6 at the end
        assert features.max() <= 6
    assert efficientnet.scaling == models.LITE


def test_weights_from_a_folder(tmp_path):
    torch.manual_seed(3)
    trained = make("resnet18", 7, 64, small_stem=False)
    trained.net.save_pretrained(tmp_path / "weights")
    x = torch.randn(1, 3, 64, 64)
    kept = make("resnet18", 0, 64, small_stem=False, trained=True, weights=str(tmp_path / "weights"))
    new = make("resnet18", 4, 64, small_stem=False, trained=True, weights=str(tmp_path / "weights"))
    for network in (trained, kept, new):
        network.eval()
    with torch.no_grad():
        assert torch.allclose(kept(x), trained(x), atol=1e-5)
        assert torch.allclose(new.features(x), trained.features(x), atol=1e-5)
        assert new(x).shape == (1, 4)
    for file in (tmp_path / "weights").glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    with pytest.raises(ValueError, match=r"weights: expected a folder with config\.json and \*\.safetensors"):
        models.check_weights(tmp_path / "weights")


@pytest.mark.parametrize("arch", [a for a in models.ARCHITECTURES if models.needed(a)])
def test_a_package_that_is_missing_is_named(monkeypatch, arch):
    package = models.needed(arch)[0]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"arch: needs {package}: pip install 'uotpool-experiments\[images\]'"
    ):
        make(arch, small_stem=True)
    task = load("image")
    assert task.clean_settings("mean", {"arch": arch}) is not None  # what reads stored runs does not need it
    with pytest.raises(ModuleNotFoundError, match=f"arch: needs {package}"):
        task.check_packages({"arch": arch})


# ---------------------------------------------------------------------------------------------------------
# pools


def test_the_features_are_what_the_pool_gets():
    """A hook finds them; pool and head applied to them give what the network gives."""
    network, x = make().eval(), torch.randn(3, 1, 28, 28)
    for pool in (None, AdaptiveUOTPool2d(64, solver="badmm-e"), nn.AdaptiveMaxPool2d(1)):
        if pool is not None:
            network.put(pool)
            assert network.pool is pool
        with torch.no_grad():
            assert torch.equal(Tail(network)(network.features(x)), network(x))


def test_the_pool_is_the_one_that_replace_finds():
    """`replace_global_pool` swaps the same layer, and both compute the same."""
    ours, theirs, x = make().eval(), make().eval(), torch.randn(3, 1, 28, 28)
    theirs.load_state_dict(ours.state_dict())
    before = ours(x)
    made = pools.make("uotp", 64, {}, "mean")
    ours.put(made)
    replace_global_pool(theirs, example=x[:1])
    theirs.pool.load_state_dict(made.state_dict())
    assert torch.equal(ours(x), theirs(x))
    assert torch.allclose(ours(x), before, atol=1e-5)


@pytest.mark.parametrize("name", pools.poolings())
def test_every_pooling(name):
    made = pools.make(name, 6, {}, "drawn")
    x = torch.randn(2, 6, 3, 4)
    y = made(x)
    assert y.shape == (2, 6, 1, 1)
    expected = {"mean": x.mean((2, 3)), "max": x.amax((2, 3))}
    if name in expected:
        assert torch.allclose(y[:, :, 0, 0], expected[name])
    if name.startswith("uotp"):
        started = pools.make(name, 6, {}, "mean")
        assert torch.allclose(started(x)[:, :, 0, 0], x.mean((2, 3)), atol=1e-5)
        assert pools.uot_of(started) is not None


def test_which_poolings_are_left_out():
    """Those with edges, and those whose output is not as wide as their input."""
    left = [name for name in ENTRIES if name not in pools.poolings()]
    for name, found in ENTRIES.items():
        pool = None if found.needs_edges else build(name, 6)
        assert (pool is None or pool.out_dim != 6 or pool.needs_fit) == (name in left), name


# ---------------------------------------------------------------------------------------------------------
# batches


def images(shape=(20, 8, 8), name: str = "made") -> Images:
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(shape[0]) % 2
    return Images(name, x, y, x[:6], y[:6], 2)


@pytest.mark.parametrize("shape", [(20, 8, 8), (20, 8, 8, 3)])
def test_standardised_by_the_training_images(shape):
    found = images(shape)
    train, test = pictures(found, 8, found.channels, None, CPU)
    x = train.batch(torch.arange(20))
    assert x.shape == (20, found.channels, 8, 8)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.mean((0, 2, 3)).abs().max() < 1e-5
    assert (x.std((0, 2, 3), unbiased=False) - 1).abs().max() < 1e-5
    assert torch.equal(test.batch(torch.arange(6)), x[:6])


def test_grey_images_for_a_network_of_colours():
    train, _ = pictures(images(), 16, 3, Scaling.given(*models.IMAGENET), CPU)
    x = train.batch(torch.arange(3))
    assert x.shape == (3, 3, 16, 16)
    grey = x * torch.tensor(models.IMAGENET[1])[:, None, None] + torch.tensor(models.IMAGENET[0])[:, None, None]
    assert torch.allclose(grey[:, 0], grey[:, 2], atol=1e-6)


def test_shifts():
    """Each result is a window of the image with a border of one pixel."""
    pixels = images((4, 8, 8, 3)).x_train
    draws = torch.zeros(4, DRAWS)
    draws[1, :2] = 0.5
    draws[2, :2] = 0.99
    draws[3, 1] = 0.99
    moved = batches.shifted(pixels, draws)
    assert torch.equal(moved[1], pixels[1])
    assert torch.equal(moved[0, 1:, 1:], pixels[0, :-1, :-1])
    assert not moved[0, 0].any()
    assert torch.equal(moved[2, :-1, :-1], pixels[2, 1:, 1:])
    assert torch.equal(moved[3, 1:, :-1], pixels[3, :-1, 1:])


def test_flips():
    """Only some images may be flipped; a digit may not."""
    draws = torch.full((20, DRAWS), 0.5)
    draws[::2, 4] = 0.4
    everything = torch.arange(20)
    for name, flipped in (("made", True), ("digits", False)):
        train, _ = pictures(images(name=name), 8, 1, None, CPU)
        plain, changed = train.batch(everything), train.batch(everything, draws)
        assert torch.equal(changed[1::2], plain[1::2])
        assert torch.equal(changed[::2], plain[::2].flip(3) if flipped else plain[::2])
