"""torchmil: a model for bags, such as the patches of a slide, that pools by UOT (extra `torchmil`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

try:
    from torchmil.models import MILModel
    from torchmil.nn.utils import get_feat_dim
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "uotpool.integrations.torchmil needs torchmil: install the extra `torchmil`", name=error.name
    ) from error

from uotpool import checks
from uotpool.nn import UOTPooling
from uotpool.nn.wrapper import PoolWrapper, Restore


class UOTMIL(PoolWrapper, MILModel):
    """A model of torchmil: features of the instances, `UOTPooling`, a linear classifier of the bag.

    Like torchmil's `ABMIL` it works with the `Trainer` and `MILModelWrapper` of the package.

    Args:
        in_shape: shape of an instance, for example `(1024,)` for features of an encoder.
        feat_ext: module that turns instances `(batch, bag, *in_shape)` into features (batch, bag, D).
            Default: none, the instances are features.
        criterion: loss of the logits and the labels of bags. Default: binary cross entropy, or cross entropy
            where there are several classes.
        classes: number of logits of a bag; 1 for a label of 0 or 1.
        **uot: options of `UOTPooling`.
    """

    _options = ("in_shape", "classes")

    def __init__(
        self,
        in_shape: Sequence[int],
        feat_ext: nn.Module | None = None,
        criterion: nn.Module | None = None,
        classes: int = 1,
        **uot: Any,
    ) -> None:
        super().__init__()
        accepted = "the shape of an instance, for example (1024,)"
        if not isinstance(in_shape, Sequence) or isinstance(in_shape, str) or not in_shape:
            checks.fail("in_shape", accepted, in_shape, TypeError)
        self.in_shape = tuple(checks.count("in_shape", n, 1) for n in in_shape)
        for name, module in (("feat_ext", feat_ext), ("criterion", criterion)):
            if module is not None and not isinstance(module, nn.Module):
                checks.fail(name, "a module, or None", module, TypeError)
        self.classes = checks.count("classes", classes, 1)
        self.feat_ext = nn.Identity() if feat_ext is None else feat_ext
        default = nn.BCEWithLogitsLoss() if classes == 1 else nn.CrossEntropyLoss()
        self.criterion = default if criterion is None else criterion
        dim = uot.pop("dim", None) or get_feat_dim(self.feat_ext, self.in_shape)
        self.pool = UOTPooling(dim, **uot)
        self.classifier = nn.Linear(dim, classes, device=uot.get("device"), dtype=uot.get("dtype"))

    def forward(
        self,
        X: Tensor | Sequence[Tensor],
        mask: Tensor | None = None,
        return_att: bool = False,
        ptr: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits of each bag, (batch,), or (batch, classes) where there are several.

        Args:
            X: bags, `(batch, bag, *in_shape)`; or the instances of all bags, `(instances, *in_shape)`, with
                `ptr`; or a list of bags, `(bag, *in_shape)` each.
            mask: 1 where an instance is present, (batch, bag). Default: all are.
            return_att: whether to return also the mass of the transport plan on each instance, (batch, bag) or
                (instances,), which sums to 1 in a bag, without a graph.
            ptr: offsets of the bags, (batch + 1,).
        """
        sets = self._sets(X, mask, ptr=ptr)[0]
        logits = self._logits(sets)
        return (logits, self.pool.scores(**sets)) if return_att else logits

    def _logits(self, sets: dict[str, Any]) -> Tensor:
        logits = self.classifier(self.pool(**sets))
        return logits.squeeze(-1) if self.classes == 1 else logits

    def _sets(
        self, X: Tensor | Sequence[Tensor], mask: Tensor | None = None, *, ptr: Tensor | None = None
    ) -> tuple[dict[str, Any], Restore]:
        accepted = f"bags (batch, bag, *{self.in_shape}), instances with ptr, or a list of bags"
        if isinstance(X, (list, tuple)):
            if not X or ptr is not None or mask is not None:
                checks.fail("X", "a list of at least one bag, without mask and ptr", X, TypeError)
            for bag in X:
                checks.tensor("X", bag, f"a list of bags (bag, *{self.in_shape})")
            sizes = torch.tensor([len(bag) for bag in X], device=X[0].device)
            ptr, X = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]), torch.cat(list(X))
        checks.tensor("X", X, accepted)
        assert isinstance(X, Tensor)
        if X.dim() != len(self.in_shape) + (2 if ptr is None else 1):
            checks.fail("X", accepted, X)
        if mask is not None and mask.is_floating_point():  # as torchmil's own collate function makes them
            checks.mask_values(mask, "1 where an instance is present, else 0")
            mask = mask.bool()
        return {"X": self.feat_ext(X), "mask": mask, "ptr": ptr}, lambda values: values

    def compute_loss(
        self, Y: Tensor, X: Tensor | Sequence[Tensor], mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits of the bags and the loss by its name, as torchmil's trainer takes it.

        Args:
            Y: labels of the bags, (batch,): 0 or 1, or the number of the class.
            X, mask: as in `forward`.
        """
        logits = self._logits(self._sets(X, mask)[0])
        accepted = f"the labels of {len(logits)} bags, a tensor ({len(logits)},)"
        checks.tensor("Y", Y, accepted)
        if Y.shape != logits.shape[:1]:
            checks.fail("Y", accepted, Y)
        target = Y.float() if self.classes == 1 else Y.long()
        return logits, {type(self.criterion).__name__: self.criterion(logits.float(), target)}

    # No decorator here: the package's wrapper reads the names of arguments from the function's code.
    def predict(
        self, X: Tensor | Sequence[Tensor], mask: Tensor | None = None, return_inst_pred: bool = True
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits of the bags without a graph.

        Args:
            X, mask: as in `forward`.
            return_inst_pred: whether to return also the contribution of each instance to the logits of its
                bag, (batch, bag), or (batch, bag, classes) where there are several. They add up to the logit
                without its bias.
        """
        with torch.no_grad():
            sets = self._sets(X, mask)[0]
            logits = self._logits(sets)
            if not return_inst_pred:
                return logits
            weight = self.classifier.weight
            g = weight[0] if self.classes == 1 else weight.expand(len(logits), *weight.shape)
            return logits, self.pool.scores(**sets, output=g)

    def get_config(self) -> dict[str, Any]:
        if not isinstance(self.feat_ext, nn.Identity):
            raise ValueError(
                "feat_ext: expected none in a config (make the model with feat_ext=... yourself, and load its "
                f"state), got {type(self.feat_ext).__name__}"
            )
        return super().get_config()
