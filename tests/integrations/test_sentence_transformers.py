"""UOT pooling inside sentence-transformers: the real package, with a tiny BERT of random weights built here."""

from __future__ import annotations

import json
import sys
from importlib import import_module

import pytest
import torch

from tests.tolerances import F32
from uotpool import BregmanADMM, Learned, Newton, SamplePrior

pytest.importorskip("sentence_transformers")

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

from examples import sentence_encoder
from uotpool.integrations.sentence_transformers import UOTPooling

DIM = 32
TEXTS = ["the film was superb.", "rain fell on every street in a small old town and we saw it.", "clever"]
PROMPT = "every film: "
DOTTED = "uotpool.integrations.sentence_transformers.UOTPooling"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(sentence_encoder.tiny_encoder(tmp_path_factory.mktemp("encoder"), DIM))


def encoder(folder, pooling=None, *after):
    model = SentenceTransformer(folder, device="cpu")
    if pooling is not None:
        model[1] = pooling
    return SentenceTransformer(modules=[*model, *after], device="cpu") if after else model


def trained(**options):
    """Return a pooling that is neither at its start nor at a symmetric point."""
    pooling = UOTPooling(DIM, **options)
    with torch.no_grad():
        for parameter in pooling.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return pooling


def encode(model, texts=TEXTS, **options):
    return model.encode(texts, convert_to_tensor=True, show_progress_bar=False, **options)


def batch(model, texts=TEXTS):
    """Return what the encoder itself makes of the texts: token embeddings and the tokenizer's mask."""
    with torch.no_grad():
        return model[0](model.preprocess(texts))


def flattened(features):
    """Return padded features in the flat form of flash attention: one row, and where each sentence begins."""
    mask = features["attention_mask"].bool()
    ptr = torch.cat([torch.zeros(1, dtype=torch.int32), mask.sum(1).cumsum(0).int()])
    return {"token_embeddings": features["token_embeddings"][mask].unsqueeze(0), "cu_seq_lens_q": ptr}


def left_padded(features):
    """Return the same sentences with their padding before them."""
    by = (features["attention_mask"] == 0).sum(1).tolist()
    return {
        name: torch.stack([row.roll(n, 0) for row, n in zip(features[name], by, strict=True)])
        for name in ("token_embeddings", "attention_mask")
    }


def assert_close(found, expected, tolerance=F32):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------------------------------------------------
# in the place of the package's own


def test_begins_as_mean_pooling(folder):
    model = encoder(folder, UOTPooling(DIM))
    assert model.get_embedding_dimension() == model[1].get_embedding_dimension() == DIM
    swapped = encoder(folder, UOTPooling(DIM, scale=Learned(0.0)))
    assert_close(encode(swapped), encode(encoder(folder)))
    assert not torch.allclose(encode(encoder(folder, UOTPooling(DIM))), encode(encoder(folder)), atol=1e-2)


LAYOUTS = {"right": dict, "left": left_padded, "flat": flattened}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [None, 3, torch.tensor([3]), torch.tensor([3, 3, 3])], ids=str)
def test_every_layout_and_prompt_gives_the_mean_of_the_package(folder, layout, length):
    features = LAYOUTS[layout](batch(encoder(folder)))
    if length is not None:
        features["prompt_length"] = length
    # This one first: the package, before version 6, changes the mask of the features.
    found = UOTPooling(DIM, include_prompt=False, scale=Learned(0.0))(dict(features))["sentence_embedding"]
    assert_close(found, Pooling(DIM, include_prompt=False)(features)["sentence_embedding"])


def test_tokens_without_a_mask_are_all_pooled():
    X, pooling = torch.randn(2, 5, DIM), trained(include_prompt=False)
    assert_close(pooling({"token_embeddings": X})["sentence_embedding"], pooling.pool(X))
    found = pooling({"token_embeddings": X, "prompt_length": 2})["sentence_embedding"]
    assert_close(found, pooling.pool(X[:, 2:]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("length", [0, 3])
def test_a_sentence_is_pooled_as_the_layer_pools_its_tokens(folder, layout, length):
    features = batch(encoder(folder))
    pooling = trained(include_prompt=False)
    X, mask = features["token_embeddings"], features["attention_mask"].bool()
    expected = torch.cat([pooling.pool(x[m][length:]) for x, m in zip(X, mask, strict=True)])
    given = LAYOUTS[layout](features) | {"prompt_length": length}
    assert_close(pooling(given)["sentence_embedding"], expected)


def test_it_learns_with_a_loss_of_the_package(folder):
    model = encoder(folder, UOTPooling(DIM, scale=Learned(0.0)), Normalize())
    loss = MultipleNegativesRankingLoss(model)
    pairs = [model.preprocess(TEXTS), model.preprocess(["superb", "rain fell", "a clever film"])]
    before = encode(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append(loss([dict(features) for features in pairs], torch.arange(3)))
        losses[-1].backward()
        assert model[1].pool.raw_scale.grad.abs().min() > 0
        optimizer.step()
    assert losses[-1] < losses[0]
    assert not torch.allclose(encode(model), before, atol=1e-3)


# ---------------------------------------------------------------------------------------------------------
# on disk

OPTIONS = {
    "default": {},
    "mean": {"scale": Learned(0.0)},
    "badmm-q": {"solver": BregmanADMM("quadratic", K=2), "alpha0": [0.5, 1.5]},
    "priors": {"q0": SamplePrior(DIM, 5), "p0": "learned", "include_prompt": False},
    "softplus": {"alpha0": Learned(0.2, "softplus", per_step=True), "scale": 1.0},
    "newton": {"solver": Newton(), "scale": 1.0},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_saved_model_gives_the_same_embeddings(folder, tmp_path, name):
    pooling, safe = trained(**OPTIONS[name]), name != "default"
    model = encoder(folder, pooling, Dense(DIM, 8), Normalize())
    model.save(str(tmp_path), create_model_card=False, safe_serialization=safe)
    assert json.loads((tmp_path / "modules.json").read_text())[1] == {
        "idx": 1,
        "name": "1",
        "path": "1_UOTPooling",
        "type": DOTTED,
    }
    loaded = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert type(loaded[1]) is UOTPooling
    assert loaded[1].get_config_dict() == pooling.get_config_dict()
    assert torch.equal(encode(loaded, prompt=PROMPT), encode(model, prompt=PROMPT))
    loaded.save(str(tmp_path / "again"), create_model_card=False)
    config = "1_UOTPooling/config.json"
    assert (tmp_path / "again" / config).read_text() == (tmp_path / config).read_text()


def test_a_fresh_process_needs_only_the_path(folder, tmp_path, monkeypatch):
    """The class is imported from its name in modules.json, by the package, and from nowhere else."""
    encoder(folder, trained()).save(str(tmp_path), create_model_card=False)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        SentenceTransformer(str(tmp_path), device="cpu")
    monkeypatch.delitem(sys.modules, "uotpool.integrations.sentence_transformers")
    loaded = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    assert type(loaded[1]) is import_module("uotpool.integrations.sentence_transformers").UOTPooling


def test_the_example(capsys):
    found = sentence_encoder.main(["--epochs", "1"])
    assert set(found) == {"mean", "uot"}
    assert all(0.3 <= value <= 1.0 for value in found.values())
    assert capsys.readouterr().out.count("of 200 test sentences") == 2
