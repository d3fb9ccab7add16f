"""Swap the pooling of a sentence encoder (sentence-transformers), train it, save it and load it again.

    python -m examples.sentence_encoder
    python -m examples.sentence_encoder --encoder sentence-transformers/all-MiniLM-L6-v2

Encoder, pooling and a linear head are trained together. The question is whether a sentence has one of a few
words, so that one token of a dozen decides. Without --encoder, a tiny BERT with random weights is built here,
so that nothing is fetched. It shows how things are done, and not which pooling is better.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizerFast
from transformers.utils import logging

from uotpool import Learned, param_groups
from uotpool.integrations.sentence_transformers import UOTPooling

COMMON = "the film was long and we saw it in a small old town where rain fell on every street"
RARE = ("superb", "moving", "clever")
WORDS = 12  # in a sentence


def tiny_encoder(folder: Path, dim: int = 32, normalize: bool = False) -> Path:
    """Write a sentence encoder with random weights and a vocabulary of whole words and letters to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ":", *dict.fromkeys(COMMON.split()), *RARE]
    pieces += [piece for letter in letters for piece in (letter, f"##{letter}") if piece not in pieces]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)
    sizes = {"hidden_size": dim, "intermediate_size": 2 * dim, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bert = BertModel(BertConfig(vocab_size=len(pieces), max_position_embeddings=64, **sizes))
    bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(str(folder))
    modules = [transformer, Pooling(dim), *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder), create_model_card=False)
    return folder


def sentences(count: int, seed: int) -> tuple[list[str], Tensor]:
    """Make sentences of common words; every second one has one of the rare words in it."""
    generator = torch.Generator().manual_seed(seed)

    def chosen(number: int) -> int:
        return int(torch.randint(number, (), generator=generator))

    common, texts = COMMON.split(), []
    for i in range(count):
        words = [common[chosen(len(common))] for _ in range(WORDS)]
        if i % 2:
            words[chosen(WORDS)] = RARE[chosen(len(RARE))]
        texts.append(" ".join(words) + ".")
    return texts, torch.arange(count) % 2


def train(model: SentenceTransformer, head: nn.Linear, texts: list[str], y: Tensor, epochs: int) -> None:
    """Train the encoder, its pooling and the head; those that are new by a larger learning rate."""
    groups = [{"params": list(model[0].parameters()), "lr": 5e-4}]
    groups += param_groups(nn.ModuleList([model[1], head]), weight_decay=1e-4)
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-2)
    model.train()
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for some in torch.randperm(len(texts), generator=order).split(32):
            features = model.preprocess([texts[i] for i in some.tolist()])
            embedding = model(features)["sentence_embedding"]
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(embedding), y[some]).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def accuracy(model: SentenceTransformer, head: nn.Linear, texts: list[str], y: Tensor) -> float:
    embedding = model.encode(texts, convert_to_tensor=True, show_progress_bar=False)
    return float((head(embedding).argmax(1) == y).float().mean())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", help="name or folder of a model (default: a tiny one with random weights)")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args(argv)

    logging.disable_progress_bar()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        encoder = args.encoder or str(tiny_encoder(Path(folder) / "tiny"))
        for name in ("mean", "uot"):
            torch.manual_seed(0)
            model = SentenceTransformer(encoder, device="cpu")
            dim = model.get_embedding_dimension()
            assert dim is not None
            if name == "uot":
                model[1] = UOTPooling(dim, scale=Learned(0.0))
            head = nn.Linear(dim, 2)
            train(model, head, *sentences(400, seed=1), args.epochs)
            # What is tested is what a user of the saved model gets.
            model.save(f"{folder}/{name}", create_model_card=False)
            loaded = SentenceTransformer(f"{folder}/{name}", device="cpu", trust_remote_code=name == "uot")
            found[name] = accuracy(loaded, head, *sentences(200, seed=2))
            print(f"{name}: {100 * found[name]:.1f} % of 200 test sentences")
    return found


if __name__ == "__main__":
    main()
