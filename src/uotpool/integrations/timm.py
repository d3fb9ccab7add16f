"""timm: UOT pooling in the place that its vision transformers have for a pooling (extra `timm`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

try:
    from timm.models.eva import Eva
    from timm.models.vision_transformer import VisionTransformer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "uotpool.integrations.timm needs timm: install the extra `timm`", name=error.name
    ) from error

from uotpool import checks
from uotpool.nn import UOTPooling
from uotpool.nn.replace import AS_MEAN
from uotpool.nn.wrapper import PoolWrapper, Restore


class TokenPooling(PoolWrapper, nn.Module):
    """`UOTPooling` of the tokens of a transformer without the first ones; `fill_attn_pool` makes one.

    Args:
        dim: number of features of a token.
        prefix: number of class and register tokens at the front of the features, which are not pooled.
        skip: number of those tokens in the input of `forward`; 0 where the model removes them itself.
        **options: options of `UOTPooling`.
    """

    _options = ("prefix", "skip")

    def __init__(self, dim: int, prefix: int = 0, skip: int = 0, **options: Any) -> None:
        super().__init__()
        self.prefix, self.skip = checks.count("prefix", prefix, 0), checks.count("skip", skip, 0)
        self.pool = UOTPooling(dim, **options)

    def forward(self, x: Tensor) -> Tensor:
        """Pool the tokens that the model passes to its `attn_pool`, (B, N, D) -> (B, D)."""
        return self.pool(x[:, self.skip :])

    def _sets(self, features: Tensor) -> tuple[dict[str, Any], Restore]:
        """Plans and scores are of the tokens that are pooled, from all of `forward_features`."""
        return {"X": features[:, self.prefix :]}, lambda values: values

    def extra_repr(self) -> str:
        return f"prefix={self.prefix}, skip={self.skip}"


def fill_attn_pool(model: nn.Module, **options: Any) -> nn.Module:
    """Pool the patch tokens of a vision transformer of timm by UOT, and return the model.

    `model.attn_pool` becomes a `TokenPooling` that begins as the mean of the patch tokens. A model
    with `global_pool="avg"` computes what it did before. One that takes its class token or has an
    attention head ("token", "map") computes something else until it is fine-tuned. To undo the swap,
    set `model.attn_pool` to what it was: None, or the attention head.

    Args:
        model: a `VisionTransformer` (ViT, DeiT-III, SigLIP, DINOv2, CLIP) or an `Eva` (EVA-02, DINOv3).
        **options: options of `UOTPooling`.
    """
    kinds: list[Any] = [kind for kind in (VisionTransformer, Eva) if isinstance(model, kind)]
    # A subclass may make its output of other tokens, as DeiT with its distillation token.
    head = getattr(type(model), "forward_head", None)
    if not any(head is kind.forward_head for kind in kinds):
        accepted = "a VisionTransformer or Eva of timm with the forward_head of that class"
        checks.fail("model", accepted, type(model), TypeError)
    transformer: Any = model
    weight, leading, before = next(model.parameters()), transformer.num_prefix_tokens, transformer.attn_pool
    # Which tokens the model passes to this module depends on its class and on the version of timm.
    transformer.attn_pool = nn.Identity()
    passed = transformer.pool(weight.new_zeros(1, leading + 1, transformer.embed_dim)).shape[1] - 1
    transformer.attn_pool = before
    if getattr(model, "pool_include_prefix", False):
        leading = passed = 0
    places = {"device": weight.device, "dtype": weight.dtype}
    layer = TokenPooling(transformer.embed_dim, leading, passed, **AS_MEAN | places | options)
    transformer.attn_pool = layer.train(model.training)
    return model
