"""What the pooling of a sentence encoder costs, against the mean pooling of sentence-transformers itself.

With --renew, writes the table of docs/use/sentence-transformers.md, for the first number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from bench import machine
from bench.cases import WrongAnswerError
from bench.report import rewrite, written
from bench.rows import Case, Comparison, cost
from bench.session import Session
from bench.timing import BOTH, FORWARD, samples, timed
from uotpool import Learned
from uotpool.integrations.sentence_transformers import UOTPooling

BASELINE, MAX, OURS, ENCODER = "Pooling, mean", "Pooling, max", "UOTPooling", "MiniLM"
SIZES = ((32, 128), (32, 32), (128, 128))  # sentences and tokens
DIM = 384
SHARE = "added, of a"
TOLERANCE = 1e-4
BEGIN = "<!-- made by: python -m bench sentence-speed --threads 1 --renew -->"
NOTE = (
    "modules of sentence-transformers, float32, a mask of int64; padded: lengths from half of the "
    "tokens to all; flat: the same sentences with cu_seq_lens_q instead of padding. added: milliseconds beyond "
    "those of mean pooling, as a share of an encoder with the sizes of MiniLM and random weights"
)


class Padded(nn.Module):
    """A module of the package with the call of a pooling: token embeddings in, sentence embeddings out."""

    def __init__(self, module: nn.Module, features: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.features = module, features

    def forward(self, X: Tensor) -> Tensor:
        pooled: Tensor = self.module({**self.features, "token_embeddings": X})["sentence_embedding"]
        return pooled


def measure(session: Session) -> list[Comparison]:
    sizes, dim = (((2, 8),), 16) if session.quick else (SIZES, DIM)
    rows: list[Comparison] = []
    for threads in session.track(session.threads, "sentence-speed"):
        for number, (sentences, tokens) in enumerate(sizes):
            generator = torch.Generator().manual_seed(0)
            lengths = torch.randint(tokens // 2, tokens + 1, (sentences,), generator=generator)
            mask = torch.arange(tokens) < lengths.unsqueeze(1)
            X = samples((sentences, tokens, dim))
            ptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
            layouts = {
                "all tokens": (X, {"attention_mask": torch.ones(sentences, tokens, dtype=torch.int64)}),
                "padded": (X, {"attention_mask": mask.long()}),
                "flat": (X[mask].unsqueeze(0), {"cu_seq_lens_q": ptr}),
            }
            for layout, (given, features) in layouts.items():
                size = f"{sentences} x {tokens} x {dim}, {layout}"
                whole = number == 0 and layout == "padded"
                rows += _compare(session, size, given, features, threads, whole=whole)
    if session.renew:
        page = machine.ROOT / "docs/use/sentence-transformers.md"
        rewrite(page, BEGIN, table(written(rows, machine.facts(session.repeats)), session.threads[0]))
    return rows


def _compare(
    session: Session, size: str, X: Tensor, features: dict[str, Any], threads: int, *, whole: bool
) -> list[Comparison]:
    dim = X.shape[-1]
    modules = {BASELINE: Pooling(dim), MAX: Pooling(dim, "max"), OURS: UOTPooling(dim)}
    pools = {name: Padded(module, features) for name, module in modules.items()}
    _verify(X, features)
    rows = []
    for mode in (FORWARD, BOTH):
        seconds = session.measure({name: timed(pool, mode, X) for name, pool in pools.items()}, threads)
        case = Case("sentence-speed", size, "sinkhorn", mode, threads)
        rows += [
            cost(case, OURS, other, seconds[OURS], seconds[other], None, NOTE) for other in (BASELINE, MAX)
        ]
        if whole:
            encoder = _encoder(dim, X.shape[1], features)
            alone = session.measure({ENCODER: timed(encoder, mode, X)}, threads)[ENCODER]
            case = Case("sentence-speed", size, "sinkhorn", f"{SHARE} {mode}", threads)
            rows.append(cost(case, OURS, ENCODER, seconds[OURS] - seconds[BASELINE], alone, None, NOTE))
    return rows


def table(lines: Sequence[dict[str, str]], threads: int) -> str:
    """List every size and layout in Markdown, from the lines of the CSV file."""
    own = [line for line in lines if line["threads"] == str(threads)]
    times = {(line["size"], line["mode"], line["baseline"]): line for line in own}
    text = [
        "| sentences x tokens x features | forward, ms | x mean | x max "
        "| forward + backward, ms | x mean | x max |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for size in dict.fromkeys(line["size"] for line in own):
        cells = [size]
        for mode in (FORWARD, BOTH):
            mean, highest = times[size, mode, BASELINE], times[size, mode, MAX]
            cells += [f"{float(mean['candidate_us']) / 1e3:.3g}"]
            cells += [f"{float(line['ratio']):.2g}" for line in (mean, highest)]
        text.append("| " + " | ".join(cells) + " |")
    shares = [line for line in own if line["baseline"] == ENCODER]
    said = " and ".join(
        f"{100 * float(line['ratio']):.2g} % ({line['mode'].removeprefix(SHARE).strip()})" for line in shares
    )
    facts = own[0]
    text += [
        "",
        f"In place of mean pooling it adds {said} to the time of an encoder with the sizes of MiniLM, at "
        f"{shares[0]['size']}.",
        "",
        f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}.",
    ]
    return "\n".join(text)


def _verify(X: Tensor, features: dict[str, Any]) -> None:
    """Refuse to time a module that pools other tokens than the package does: at its start it is the mean."""
    expected = Pooling(X.shape[-1])({**features, "token_embeddings": X})["sentence_embedding"]
    found = UOTPooling(X.shape[-1], scale=Learned(0.0))({**features, "token_embeddings": X})[
        "sentence_embedding"
    ]
    if not torch.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        raise WrongAnswerError(
            f"bench: {OURS} at a scale of 0 and {BASELINE} differ on {tuple(X.shape)}; not timed"
        )


def _encoder(dim: int, tokens: int, features: dict[str, Any]) -> nn.Module:
    """Return the layers of MiniLM, or smaller ones, as a module from token embeddings to token embeddings."""
    config = BertConfig(
        vocab_size=8,
        hidden_size=dim,
        intermediate_size=4 * dim,
        num_hidden_layers=6,
        num_attention_heads=12 if dim == DIM else 4,
        max_position_embeddings=tokens,
    )
    bert = BertModel(config, add_pooling_layer=False).eval()

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, X: Tensor) -> Tensor:
            hidden: Tensor = bert(inputs_embeds=X, attention_mask=features["attention_mask"]).last_hidden_state
            return hidden

    return Encoder()
