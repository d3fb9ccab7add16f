"""sentence-transformers: UOT pooling of token embeddings to a sentence embedding (its extra has that name)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

try:
    from sentence_transformers.sentence_transformer.modules import Module
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "uotpool.integrations.sentence_transformers needs sentence-transformers 5.4 or newer: "
        "install the extra `sentence-transformers`",
        name=error.name,
    ) from error

from uotpool import checks
from uotpool import nn as layers
from uotpool.nn import config as configs
from uotpool.nn.wrapper import PoolWrapper, Restore

TOKENS, MASK, OFFSETS = "token_embeddings", "attention_mask", "cu_seq_lens_q"


class UOTPooling(PoolWrapper, Module):
    """`uotpool.UOTPooling` as a module of sentence-transformers, in the place of its `Pooling`.

    `model[1] = UOTPooling(model.get_embedding_dimension(), scale=Learned(0.0))` replaces the mean pooling
    of a trained encoder, whose embeddings stay the same until the layer is trained. Loading a saved model
    needs `trust_remote_code=True`, since the class is not part of sentence-transformers.

    Args:
        embedding_dimension: number of features of a token.
        include_prompt: whether the tokens of a prompt are pooled with the others, as in `Pooling`.
        **options: options of `uotpool.UOTPooling`, for example `scale=Learned(0.0)`. They are saved in
            `config.json`, so a prior that is a module of your own is refused.

    Attributes:
        pool: the layer. `module.scores(features)` says which tokens it looks at.
    """

    def __init__(self, embedding_dimension: int, include_prompt: bool = True, **options: Any) -> None:
        super().__init__()
        checks.count("embedding_dimension", embedding_dimension, 1)
        checks.flag("include_prompt", include_prompt)
        self.include_prompt = include_prompt
        self.pool = layers.UOTPooling(embedding_dimension, **options)
        self.pool.get_config()  # refuses a prior that `config.json` cannot hold

    @property
    def embedding_dimension(self) -> int:
        return self.pool.dim

    def get_embedding_dimension(self) -> int:
        """Return the number of features of a sentence embedding, which is that of a token."""
        return self.pool.out_dim

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `sentence_embedding`, (sentences, features), to the features.

        Args:
            features: of the previous modules: `token_embeddings` (sentences, tokens, features), with an
                `attention_mask` (sentences, tokens), 0 at padding, if there is padding; or, as with flash
                attention, (1, tokens of all sentences, features) with the offsets of the sentences in
                `cu_seq_lens_q`. Where the prompt is not pooled, `prompt_length` is the number of its tokens, or
                a tensor with one or one per sentence.
            **kwargs: ignored; the package passes options of `encode`.
        """
        features["sentence_embedding"] = self.pool(**self._sets(features)[0])
        return features

    def _sets(self, features: dict[str, Any]) -> tuple[dict[str, Any], Restore]:
        if not isinstance(features, Mapping):
            checks.fail("features", "the features of a batch, a dict", features, TypeError)
        X = self._tokens(features)
        skip = None if self.include_prompt else features.get("prompt_length")
        if OFFSETS in features:
            flat, ptr = X[0], features[OFFSETS]
            mask = None if skip is None else _after_prompt_flat(ptr, len(flat), skip)
            return {"X": flat, "ptr": ptr, "mask": mask}, lambda values: values.unsqueeze(0)
        mask = _checked_mask(features.get(MASK), X)
        if skip is not None:
            mask = _after_prompt(X, mask, skip)
        return {"X": X, "mask": mask}, lambda values: values

    def _tokens(self, features: Mapping[str, Any]) -> Tensor:
        """Return the token embeddings; refuse features without them."""
        X = features.get(TOKENS)
        if X is None:
            keys = ", ".join(map(str, features)) or "none"
            raise ValueError(
                f"features: expected the key {TOKENS!r}, got the keys {keys}: put a module that makes token "
                "embeddings, such as Transformer, before this one"
            )
        if "token_weights_sum" in features:
            raise ValueError(
                "features: expected tokens without weights, got 'token_weights_sum' of the module WordWeights: "
                "leave that module out, this pooling weighs the tokens itself"
            )
        flat = OFFSETS in features
        shape = (
            f"(1, tokens, {self.pool.dim}) with {OFFSETS}" if flat else f"(sentences, tokens, {self.pool.dim})"
        )
        checks.floating(TOKENS, X, f"a floating tensor {shape}")
        if X.dim() != 3 or (flat and X.shape[0] != 1):
            checks.fail(TOKENS, f"a tensor {shape}", X)
        if X.shape[-1] != self.pool.dim:
            made = f"this module was made with embedding_dimension={self.pool.dim}"
            way_out = f"make it with that of the encoder, UOTPooling({X.shape[-1]}, ...)"
            checks.fail(TOKENS, f"a tensor {shape} ({made}; {way_out})", X)
        return X

    def get_config_dict(self) -> dict[str, Any]:
        """Return the arguments that make this module again, without its weights."""
        options = self.pool.get_config()
        dim = options.pop("dim")
        return {"embedding_dimension": dim, "include_prompt": self.include_prompt, **options}

    def get_config(self) -> dict[str, Any]:
        return self.get_config_dict()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        merged = {**config, **options}
        dim, include_prompt = merged.pop("embedding_dimension"), merged.pop("include_prompt", True)
        arguments = configs.options(layers.UOTPooling, {"dim": dim, **merged}, {})
        return cls(arguments.pop("dim"), include_prompt, **arguments)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the options to `config.json` and the weights beside it."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Make the module that `save` wrote to a folder, or that a model on the Hub has there."""
        where: dict[str, Any] = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        config = cls.load_config(model_name_or_path, **where)
        if "embedding_dimension" not in config:
            raise ValueError(
                f"{model_name_or_path}: expected {cls.config_file_name} of a saved UOTPooling in the folder "
                f"{subfolder!r}, got {config or 'none'}: save the model with model.save(path)"
            )
        module = cls.from_config(config)
        cls.load_torch_weights(model_name_or_path, **where, model=module)
        return module


def _checked_mask(mask: Tensor | None, X: Tensor) -> Tensor | None:
    """Return the mask; None if there is no padding, which is faster and frequent: `encode` sorts by length."""
    if mask is None:
        return None
    accepted = f"a tensor of shape {tuple(X.shape[:2])} of 0 and 1"
    checks.tensor(MASK, mask, accepted)
    if mask.shape != X.shape[:2]:
        checks.fail(MASK, f"{accepted}, or no such key where there is no padding", mask)
    return None if checks.readable(mask) and bool((mask == 1).all()) else mask


def _after_prompt(X: Tensor, mask: Tensor | None, length: int | Tensor) -> Tensor:
    """Return the mask without the prompt of each sentence, which may begin after padding."""
    position = torch.arange(X.shape[1], device=X.device)
    if mask is None:
        return (position >= _column(length, X)).expand(X.shape[:2])
    begin = mask.to(torch.uint8).argmax(1, keepdim=True)  # the first of the largest values, so the first 1
    return mask * (position >= begin + _column(length, X))  # values other than 0 and 1 stay, to be refused


def _after_prompt_flat(ptr: Tensor, tokens: int, length: int | Tensor) -> Tensor:
    position = torch.arange(tokens, device=ptr.device)
    begin = ptr[:-1] + _column(length, ptr).flatten()
    return position >= begin.repeat_interleave(ptr.diff(), output_size=tokens)


def _column(length: int | Tensor, like: Tensor) -> Tensor:
    """Return the length of the prompt as a column: one number for all sentences, or one for each."""
    return torch.as_tensor(length, device=like.device).reshape(-1, 1)
