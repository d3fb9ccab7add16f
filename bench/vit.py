"""What the pool costs in a vision transformer (ViT-S/16 at 224 x 224): mean, UOT and an attention (MAP) head.

The network is the ViT of I-JEPA in transformers, which averages its patch tokens, with the widths of ViT-S/16
and random weights; `UOT` is the same network with UOT pooling that begins as the mean, `MAP` with the head of
SigLIP in the place of the mean, one query that attends to all tokens and an MLP. Times are those of the
processor, on one thread, as a call takes a second and a busy machine would be measured with it.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import IJepaConfig, IJepaForImageClassification, SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

from bench.rows import Case, Comparison, cost
from bench.session import Session
from bench.timing import Call, processor_time
from uotpool import Learned, UOTPooling

MEAN, UOT, MAP = "mean", "UOT", "MAP"
FORWARD, STEP, POOL = "forward", "forward + backward", "pool alone, "
NOTE = "I-JEPA's ViT of transformers, 12 layers of width 384, patches of 16 x 16; logits of UOT at its start "
WIDTHS = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6}
QUICK = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Classifier(nn.Module):
    """The transformer with another pool before its linear classifier."""

    def __init__(self, net: Any, pool: nn.Module) -> None:
        super().__init__()
        self.transformer, self.classifier, self.pool = net.ijepa, net.classifier, pool

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.transformer(x).last_hidden_state))


def measure(session: Session) -> list[Comparison]:
    batch, size = (2, 32) if session.quick else (4, 224)
    rows: list[Comparison] = []
    for threads in session.track((1,), "vit"):
        torch.manual_seed(0)
        widths = QUICK if session.quick else WIDTHS
        plain = IJepaForImageClassification(
            IJepaConfig(image_size=size, patch_size=16, num_labels=10, **widths)
        )
        uot = UOTPooling(widths["hidden_size"], scale=Learned(0.0))
        swapped = Classifier(copy.deepcopy(plain), uot)
        x = torch.randn(batch, 3, size, size)
        with torch.no_grad():
            off = float((swapped.eval()(x) - plain.eval()(x).logits).abs().max())
            tokens = plain.ijepa(x).last_hidden_state
        head = SiglipMultiheadAttentionPoolingHead(SiglipVisionConfig(**widths))
        pools = {MEAN: Mean(), UOT: copy.deepcopy(uot), MAP: head}
        nets: dict[str, nn.Module] = {MEAN: plain, UOT: swapped, MAP: Classifier(copy.deepcopy(plain), head)}
        label = f"{batch} x 3 x {size} x {size} ({tokens.shape[1]} tokens of {tokens.shape[2]})"
        note = f"{NOTE}differ from those of the mean by at most {off:.1e}"
        for mode, make in ((FORWARD, _forward), (STEP, _step)):
            for prefix, modules, inputs in (("", nets, x), (POOL, pools, tokens)):
                calls = {name: make(module, inputs) for name, module in modules.items()}
                seconds = processor_time(calls, session.repeats, session.min_sample)
                for name in (UOT, MAP):
                    case = Case("vit", label, name, prefix + mode, threads)
                    rows.append(cost(case, name, MEAN, seconds[name], seconds[MEAN], None, note))
    return rows


def _out(module: nn.Module, x: Tensor) -> Tensor:
    out = module(x)
    return out if isinstance(out, Tensor) else out.logits


def _forward(module: nn.Module, x: Tensor) -> Call:
    def call() -> object:
        with torch.no_grad():
            return _out(module, x)

    return call


def _step(module: nn.Module, x: Tensor) -> Call:
    inputs = x.clone().requires_grad_()

    def call() -> object:
        module.zero_grad()
        _out(module, inputs).square().mean().backward()
        inputs.grad = None
        return None

    return call
