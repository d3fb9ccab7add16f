"""The settings of a run on images."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from uotpool import checks
from uotpool_experiments.tasks.image.models import (
    ARCHITECTURES,
    CNN,
    EFFICIENTNET,
    LOCAL,
    SMALL_IMAGE,
    check_weights,
)
from uotpool_experiments.tasks.spec import Options

RECIPES = ("scratch", "two-stage")
LARGE = 224  # pixels, of files
EFFICIENTNET_SIZE = 128
# Images of 8 x 8 leave little to pool after two strides.
SIZES = {"digits": 16}


@dataclass(frozen=True)
class Settings(Options):
    """The settings of a run. The defaults of stage two are the paper's."""

    arch: str = "resnet-tiny"
    recipe: Literal["scratch", "two-stage"] = "scratch"
    epochs: int = 20  # of training from scratch, or of stage one
    batch: int = 128
    lr: float = 0.1  # learning rate at the start; it falls to 0 along a cosine
    momentum: float = 0.9
    weight_decay: float = 5e-4
    augment: bool | None = None  # random crops and flips; None: unless trained weights are frozen
    size: int | None = None  # of images, in pixels; None: as they are, 16 for digits, 128 in EfficientNet
    stem: Literal["small", "large"] | None = None  # of a ResNet; None: small for images below 64 pixels
    local: str = "max"  # the local pool between the convolutions of "cnn"
    train_size: int | None = None  # a stratified part of the training images; None: all
    weights: str | None = None  # folder with a trained ResNet, for stage one
    head: Literal["new", "kept"] = "new"  # last layer of trained weights: "kept" if the classes are the same
    pool: dict[str, Any] = field(default_factory=dict)  # options of `zoo.build`
    pool_lr: float = 1.0  # learning rate of a UOT pooling's weights, as a multiple of that of the rest
    start: Literal["mean", "drawn"] | None = None  # of a UOT pooling; None: "mean" in two-stage, else "drawn"
    pool_epochs: int | None = None  # of stage two; None: a tenth of `epochs`, at least 1
    batch2: int = 256
    lr2: float = 1e-3  # constant
    optimizer2: Literal["sgd", "adam"] = "sgd"
    augment2: bool = False  # True: the inputs of the pool must be computed again in each epoch
    cache_mib: int = 1024  # for inputs of the pool; if they do not fit, half precision, or no cache at all
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        checks.one_of("arch", self.arch, ARCHITECTURES)
        checks.one_of("recipe", self.recipe, RECIPES)
        checks.one_of("head", self.head, ("new", "kept"))
        checks.one_of("local", self.local, LOCAL)
        if self.local != "max" and self.arch != CNN:
            raise ValueError(
                f"local: expected 'max' but with arch {CNN!r}, got {self.local!r} with {self.arch!r}"
            )
        checks.one_of("optimizer2", self.optimizer2, ("sgd", "adam"))
        checks.one_of("precision", self.precision, ("float32", "bfloat16"))
        checks.one_of("device", self.device, ("cpu", "cuda"))
        for name, least in (("epochs", 1), ("batch", 2), ("batch2", 2), ("cache_mib", 0)):
            checks.count(name, getattr(self, name), least)
        for name, least in (("size", 8), ("train_size", 2), ("pool_epochs", 1)):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), least)
        if self.stem is not None:
            checks.one_of("stem", self.stem, ("small", "large"))
        if self.start is not None:
            checks.one_of("start", self.start, ("mean", "drawn"))
        for name in ("lr", "lr2"):
            checks.number(name, getattr(self, name), positive=True)
        for name in ("weight_decay", "pool_lr"):
            checks.number(name, getattr(self, name), positive=False)
        if checks.number("momentum", self.momentum, positive=False) >= 1:
            checks.fail("momentum", "a number >= 0 and < 1", self.momentum)
        if self.augment is not None:
            checks.flag("augment", self.augment)
        checks.flag("augment2", self.augment2)
        if not isinstance(self.pool, dict):
            checks.fail("pool", "a table of options", self.pool, TypeError)
        if "start" in self.pool:
            raise ValueError("pool: expected no start, which is a setting of its own, got one")
        self._check_weights()

    def _check_weights(self) -> None:
        if self.head == "kept" and not self.trained:
            checks.fail("head", "'new' without trained weights", self.head)
        if self.weights is None:
            return
        if not isinstance(self.weights, str):
            checks.fail("weights", "the path of a folder", self.weights, TypeError)
        if self.recipe == "scratch" or self.arch == EFFICIENTNET or self.stem == "small":
            raise ValueError(
                "weights: expected none but with recipe 'two-stage', a ResNet and stem 'large', got "
                f"recipe {self.recipe!r}, arch {self.arch!r}, stem {self.stem!r}"
            )
        check_weights(Path(self.weights))

    @property
    def trained(self) -> bool:
        """Whether the network comes with trained weights, so that stage one learns only the last layer."""
        return self.recipe == "two-stage" and (self.weights is not None or self.arch == EFFICIENTNET)

    @property
    def augments(self) -> bool:
        """Whether stage one and training from scratch augment.

        A frozen network would run again in each epoch.
        """
        return not self.trained if self.augment is None else self.augment

    @property
    def starts(self) -> str:
        """How a UOT pooling starts."""
        return self.start or ("mean" if self.recipe == "two-stage" else "drawn")

    @property
    def stage_two_epochs(self) -> int:
        return max(1, self.epochs // 10) if self.pool_epochs is None else self.pool_epochs

    def size_of(self, dataset: str, side: int | None) -> int:
        """Return the side in pixels at which the network gets the images of a data set, which have
        the given side.
        """
        if self.size is not None:
            return self.size
        if self.arch == EFFICIENTNET:
            return EFFICIENTNET_SIZE if side is not None else LARGE
        return SIZES.get(dataset, side or LARGE)

    def small_stem(self, size: int) -> bool:
        return (size < SMALL_IMAGE or self.arch == "resnet-tiny") if self.stem is None else self.stem == "small"
