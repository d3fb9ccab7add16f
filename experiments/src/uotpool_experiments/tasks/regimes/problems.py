"""The questions about bags of images, and the three parts that they are divided into.

Designs were compared on the development part. The confirmation part has other images, other classes and
other scalars, and judges what was chosen there. The reserve is for the next round: nobody has run it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from uotpool import checks

PARTS = ("development", "confirmation", "reserve")
REGRESSIONS = ("mean", "max", "quantile", "range")


@dataclass(frozen=True)
class Regime:
    """One question about bags of images of one data set.

    Attributes:
        name: the data set of the run, such as "digits-presence-50".
        images: the data set of the images.
        part: the part of the benchmark.
        family: the kind of the question; `bags.draw` has what each means.
        size: samples of a bag.
        classes: the classes of images that the question is about.
        share: the least and the largest share of positive bags, for the family "share".
        scalar: the property of an image, for regressions; `images.SCALARS` has them.
        test_size: samples of a test bag, if other than those of a training bag.
        steps: steps of training, enough for the best poolings to learn the question.
        batch: bags of a step.
    """

    name: str
    images: str
    part: str
    family: str
    size: int
    classes: tuple[int, ...] = ()
    share: tuple[float, float] = (0.0, 1.0)
    scalar: str = ""
    test_size: int | None = None
    steps: int = 300
    batch: int = 64

    @property
    def is_regression(self) -> bool:
        return self.family in REGRESSIONS


@dataclass(frozen=True)
class _Theme:
    """The images, the classes and the scalar that a group of questions is about."""

    images: str
    part: str
    prefix: str
    target: int  # is counted, and one of two in a conjunction
    other: int
    witness: int  # is looked for among tens of others
    distinct: int  # is looked for among hundreds of others, from which it can be told without an error
    kinds: tuple[int, int, int, int]
    scalar: str

    def presence(self, rate: int) -> Regime:
        return self._make(f"presence-{rate}", "presence", rate, (self.witness,))

    def share(self, name: str, least: float, largest: float = 1.0) -> Regime:
        return self._make(name, "share", 20, (self.target,), share=(least, largest))

    def conjunction(self) -> Regime:
        return self._make("conjunction", "conjunction", 20, (self.target, self.other))

    def several_kinds(self, needed: int, of: int) -> Regime:
        name = f"kinds-{needed}-of-{of}"
        return self._make(name, name, 20, self.kinds[:of])

    def regression(self, family: str) -> Regime:
        return self._make(family, family, 20, scalar=self.scalar)

    def shift(self, question: Regime, size: int, test_size: int) -> Regime:
        name = f"{question.name}-{size}-to-{test_size}"
        batch = 64 if size <= 50 else 32
        return replace(question, name=name, size=size, test_size=test_size, batch=batch)

    def _make(self, name: str, family: str, size: int, classes: tuple[int, ...] = (), **rest: object) -> Regime:
        full = f"{self.prefix}-{name}"
        return Regime(full, self.images, self.part, family, size, classes, **rest)  # type: ignore[arg-type]

    def usual(self) -> list[Regime]:
        """Return the questions that every group of images has."""
        found = [self.presence(rate) for rate in (10, 20, 50)]
        found += [self.share("majority", 0.5), self.share("fifth", 0.2), self.share("between", 0.3, 0.7)]
        found += [self.conjunction(), self.several_kinds(2, 3), self.several_kinds(3, 4)]
        return found + [self.regression(family) for family in REGRESSIONS]

    def shifts(self) -> list[Regime]:
        """Return the questions that are tested on bags of another size."""
        witness = replace(self.presence(20), name=f"{self.prefix}-presence")
        majority = self.share("majority", 0.5)
        return [self.shift(q, *sizes) for q in (witness, majority) for sizes in ((20, 200), (200, 20))]

    def rare(self) -> list[Regime]:
        """Return the questions about one sample in hundreds, which take more steps to learn."""
        looked_for = {"classes": (self.distinct,), "batch": 16}
        return [
            replace(self.presence(rate), **looked_for, steps=steps)  # type: ignore[arg-type]
            for rate, steps in ((200, 1000), (500, 1500))
        ]


_DEVELOPMENT = (
    _Theme("digits", "development", "digits", 9, 3, 6, 0, (1, 4, 7, 8), "brightness"),
    _Theme("fashion-mnist", "development", "fashion", 8, 1, 5, 8, (5, 8, 1, 9), "brightness"),
)
_CONFIRMATION = (
    _Theme("mnist-5k", "confirmation", "mnist", 4, 6, 3, 1, (2, 5, 6, 9), "balance"),
    _Theme("cifar10-subset", "confirmation", "cifar", 8, 6, 0, 0, (0, 1, 6, 8), "warmth"),
)
_RESERVE = (
    _Theme("mnist-5k", "reserve", "mnist-reserve", 7, 3, 2, 0, (0, 3, 4, 8), "tilt"),
    _Theme("fashion-mnist", "reserve", "fashion-reserve", 7, 3, 9, 1, (0, 2, 4, 6), "tilt"),
)


def _all() -> list[Regime]:
    digits, fashion = _DEVELOPMENT
    mnist, cifar = _CONFIRMATION
    found = [*digits.usual(), *digits.shifts(), *digits.rare()]
    found += [fashion.presence(20), fashion.share("between", 0.3, 0.7), fashion.conjunction()]
    found += [fashion.several_kinds(2, 3), fashion.regression("quantile"), fashion.regression("range")]
    found += [*mnist.usual(), *mnist.shifts(), *mnist.rare()]
    # Its classes are hard to tell by these features, so that there are no questions about a single image.
    found += [cifar.share("majority", 0.5), cifar.share("between", 0.3, 0.7)]
    found += [cifar.regression(family) for family in REGRESSIONS]
    for theme in _RESERVE:
        found += [*theme.usual(), *theme.shifts(), *theme.rare()]
    return found


REGIMES: dict[str, Regime] = {regime.name: regime for regime in _all()}


def regime(name: str) -> Regime:
    """Return the regime of this name. The error for an unknown name lists the nearest known ones."""
    if name not in REGIMES:
        near = difflib.get_close_matches(name, REGIMES, n=3, cutoff=0.3) or list(REGIMES)[:3]
        known = sorted({found.name.split("-", 1)[1] for found in REGIMES.values() if found.images == "digits"})
        accepted = (
            f"a regime, such as {', '.join(near)} (digits-NAME with a NAME among {', '.join(known)}, ...)"
        )
        checks.fail("dataset", accepted, name)
    return REGIMES[name]


def names(part: str) -> list[str]:
    """Return the names of all regimes of a part."""
    checks.one_of("part", part, PARTS)
    return [name for name, found in REGIMES.items() if found.part == part]
