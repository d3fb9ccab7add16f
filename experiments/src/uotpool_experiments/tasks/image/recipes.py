"""The two recipes: training from scratch with the pooling, or with average pooling first, as in the paper."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uotpool_experiments.datasets.digests import file_digest
from uotpool_experiments.datasets.image_folder import Files
from uotpool_experiments.datasets.images import Images
from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.image import features, models, parallel, pools
from uotpool_experiments.tasks.image.batches import Pictures, Scaling, Source, pictures
from uotpool_experiments.tasks.image.loop import Phase, Trained, predict, train
from uotpool_experiments.tasks.image.metrics import accuracy, class_metrics, plan_facts
from uotpool_experiments.tasks.image.models import Classifier, Tail
from uotpool_experiments.tasks.image.settings import Settings
from uotpool_experiments.tasks.seeding import seed_for
from uotpool_experiments.tasks.spec import Report, Result, RunSpec, canonical

SHOWN = 256  # test images whose plans are looked at
# Settings that stage one does not depend on.
LATER = ("pool", "start", "pool_epochs", "batch2", "lr2", "optimizer2", "augment2")


@dataclass
class Job:
    """One run: its network with average pooling, and its images."""

    spec: RunSpec
    settings: Settings
    images: Images
    network: Classifier
    train: Pictures
    test: Pictures
    report: Report

    @classmethod
    def of(cls, spec: RunSpec, settings: Settings, images: Images, report: Report) -> Job:
        device = parallel.device(settings.device)
        size = settings.size_of(images.name, images.side)
        channels = 3 if settings.trained or settings.arch == models.EFFICIENTNET else images.channels
        torch.manual_seed(seed_for(spec, "network"))
        network = models.make(
            settings.arch,
            channels,
            0 if settings.head == "kept" else images.classes,
            size,
            small_stem=settings.small_stem(size),
            trained=settings.trained,
            weights=settings.weights,
            local=settings.local,
        ).to(device)
        if network.classes != images.classes:
            raise ValueError(
                f"head: expected 'new', as the trained network has {network.classes} classes and the data have "
                f"{images.classes}, got 'kept'"
            )
        scaling = Scaling.given(*network.scaling) if network.scaling else None
        parts = pictures(images, size, channels, scaling, device)
        return cls(spec, settings, images, network, *parts, report)

    @property
    def key(self) -> str:
        return self.spec.key(fingerprint(self.spec.task, self.spec.pooling))

    def path(self, phase: str) -> Path:
        """Return the file of the state after each epoch.

        Runs with other weights, files or processes have another.
        """
        return checkpoints.folder() / f"{self.key}.{phase}.{self.origin[:8]}.pt"

    @cached_property
    def origin(self) -> str:
        """A hash of all that decides stage one."""
        return _digest(_stage_one_facts(self))

    def seed(self, what: str) -> int:
        return seed_for(self.spec, what)

    def put_pool(self) -> None:
        """Put the pooling of the run in the place of the average."""
        settings = self.settings
        torch.manual_seed(self.seed("pool"))
        made = pools.make(self.spec.pooling, self.network.width, settings.pool, settings.starts)
        self.network.put(made.to(self.train.device))

    def logits(self, model: nn.Module, source: Source) -> Tensor:
        return predict(model, source, self.settings.precision)

    def phase_one(self, name: str) -> Phase:
        s = self.settings
        how = (s.momentum, s.weight_decay, s.pool_lr)
        return Phase(name, s.epochs, s.batch, s.lr, *how, augment=s.augments, precision=s.precision)

    def phase_two(self, augment: bool) -> Phase:
        s = self.settings
        how = (s.momentum, s.weight_decay, s.pool_lr)
        adam = s.optimizer2 == "adam"
        return Phase("two", s.stage_two_epochs, s.batch2, s.lr2, *how, False, adam, augment, s.precision)

    def result(self, model: nn.Module, test: Source, trained: Trained, details: dict[str, Any]) -> Result:
        """Make the result of the last epoch, or under "paper" of the epoch that is best on the test images."""
        details |= {"epoch": len(trained.curves), "diverged": int(trained.diverged)}
        if trained.best is not None:
            details |= {"epoch": trained.best_epoch, "last_accuracy": trained.curves[-1]["test_accuracy"]}
            model.load_state_dict(trained.best)
        uot = pools.uot_of(self.network.pool)
        if uot is not None:
            shown = torch.linspace(0, len(test.y) - 1, min(SHOWN, len(test.y))).long()
            x = test.batch(shown)
            if isinstance(test, Pictures):
                self.network.eval()
                with torch.no_grad():
                    x = self.network.features(x)
            details |= plan_facts(uot, x)
        if trained.seconds:
            details["seconds_per_epoch"] = sum(trained.seconds) / len(trained.seconds)
        return Result(
            metrics=class_metrics(self.logits(model, test), test.y, self.images.y_train),
            epochs=trained.curves,
            details=details,
            parameters=sum(p.numel() for p in self.network.parameters()),
        )

    def judge(self, model: nn.Module, test: Source) -> Callable[[], float] | None:
        """Return the function for the test accuracy after each epoch under "paper", None under "fair"."""
        if self.spec.protocol == "fair":
            return None
        return lambda: accuracy(self.logits(model, test), test.y)


def scratch(job: Job) -> Result:
    """Train everything, with the pooling from the start."""
    job.put_pool()
    network = job.network
    phase, path, judge = job.phase_one("scratch"), job.path("scratch"), job.judge(network, job.test)
    trained = train(network, [network], job.train, phase, job.seed, path, job.report, judge)
    return job.result(network, job.test, trained, {})


def two_stage(job: Job) -> Result:
    """Train with average pooling; then put in another pool and train it alone.

    The pooling "mean" is the control: stage one goes on for as many epochs, with the parameters
    that it has trained so far.
    """
    s, network = job.settings, job.network
    first = s.epochs if s.head == "new" else 0
    total = first + s.stage_two_epochs
    learned = _stage_one(job, lambda done, _: job.report(done, total)) if first else Trained()
    control = job.spec.pooling == "mean"
    augment = s.augments if control else s.augment2
    whole = control and not s.trained
    inputs, test = (job.train, job.test) if whole else _inputs(job, augment)
    model: nn.Module = network if whole else Tail(network)
    details: dict[str, Any] = {"accuracy_before": accuracy(job.logits(model, test), test.y)}
    if not control:
        job.put_pool()
        model = Tail(network)
        details["accuracy_swapped"] = accuracy(job.logits(model, test), test.y)
    learning: nn.Module = network if whole else network.head if control else network.pool
    network.requires_grad_(False)
    learning.requires_grad_()
    trained = Trained()
    if next(learning.parameters(), None) is not None:  # max pooling has no parameters and is only put in
        phase, path, judge = job.phase_two(augment), job.path("two"), job.judge(model, test)

        def report(done: int, _: int) -> None:
            job.report(first + done, total)

        trained = train(model, [learning], inputs, phase, job.seed, path, report, judge)
    result = job.result(model, test, trained, details | {"stage_one_diverged": int(learned.diverged)})
    stages = ((1, learned), (2, trained))
    result.epochs = [{"stage": stage} | row for stage, found in stages for row in found.curves]
    return result


def _inputs(job: Job, augment: bool) -> tuple[Source, Source]:
    """Return the inputs of the pool of a frozen network, from memory where they fit and never change."""
    s = job.settings
    job.network.eval()
    if not augment and parallel.world() == 1:
        facts = _pretrained(job) if s.trained else _stage_one_facts(job)
        key = _digest(facts | {"cap": s.cache_mib})  # the cap decides the precision
        found = features.of(job.network, (job.train, job.test), s.cache_mib, s.precision, key, s.trained)
        if found is not None:
            return found
    made = [features.Computed(job.network, part, s.precision) for part in (job.train, job.test)]
    return made[0], made[1]


def _stage_one(job: Job, report: Report) -> Trained:
    """Train with average pooling once for all poolings of a seed, in one process, and keep the
    result in a file.
    """
    s, network = job.settings, job.network
    key = job.origin
    path = checkpoints.folder() / f"stage-{key}.pt"
    under_way = checkpoints.folder() / f"stage-{key}.part.pt"
    with parallel.locked_by_first(path):
        state = parallel.from_first(lambda: checkpoints.read(path))
        if state is not None:
            network.load_state_dict(state["model"])
            return Trained(curves=state["curves"], diverged=state["diverged"])
        phase = job.phase_one("one")
        if s.trained:  # only the last layer is new
            source, _ = _inputs(job, s.augments)
            model, learning = Tail(network), network.head
            network.requires_grad_(False)
            learning.requires_grad_()
        else:
            source, model, learning = job.train, network, network  # type: ignore[assignment]
        trained = train(model, [learning], source, phase, job.seed, under_way, report)
        if parallel.rank() == 0:
            found = {"model": network.state_dict(), "curves": trained.curves, "diverged": trained.diverged}
            checkpoints.write(path, found)
            under_way.unlink(missing_ok=True)
    return trained


def _stage_one_facts(job: Job) -> dict[str, Any]:
    """Return all facts that decide stage one."""
    s = job.settings
    chosen = {name: value for name, value in asdict(s).items() if name not in LATER}
    return {
        "settings": chosen,
        "weights": [file_digest(p) for p in _weight_files(Path(s.weights))] if s.weights else [],
        "data": _data(job.images),
        "seed": [job.spec.seed, job.spec.fold],
        "processes": parallel.world(),
        "code": fingerprint(job.spec.task, "mean"),
        "torch": torch.__version__,
    }


def _weight_files(folder: Path) -> list[Path]:
    return [folder / "config.json", *sorted(folder.glob("*.safetensors"))]


def _pretrained(job: Job) -> dict[str, Any]:
    """Return all facts that decide what a network with trained weights gives to its pool; the seed does not."""
    facts = _stage_one_facts(job)
    kept = ("arch", "size", "stem", "train_size", "precision", "device")
    settings = {name: facts["settings"][name] for name in kept}
    return facts | {"settings": settings, "seed": None}


def _data(images: Images) -> list[Any]:
    if isinstance(images.x_train, Files):  # no checksum is known, so names and sizes have to do
        return [images.name, [[str(p), p.stat().st_size] for p in images.x_train.paths]]
    return [images.name]


def _digest(facts: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(facts).encode()).hexdigest()[:32]
