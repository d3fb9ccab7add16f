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


class UOTMIL(MILModel):
    """A model of torchmil: features of the instances, `UOTPooling`, a linear classifier of the bag.

    It is to `UOTPooling` what torchmil's `ABMIL` is to its attention pooling, and takes part in the
    package's `Trainer` and `MILModelWrapper` like that one.

    Args:
        in_shape: shape of an instance, for example `(1024,)` for features of an encoder.
        feat_ext: module that turns instances `(batch, bag, *in_shape)` into features (batch, bag, D).
            Default: none, the instances are features.
        criterion: loss of the logits and the labels of bags. Default: binary cross entropy.
        **uot: options of `UOTPooling`.
    """

    def __init__(
        self,
        in_shape: Sequence[int],
        feat_ext: nn.Module | None = None,
        criterion: nn.Module | None = None,
        **uot: Any,
    ) -> None:
        super().__init__()
        accepted = "the shape of an instance, for example (1024,)"
        if not isinstance(in_shape, Sequence) or isinstance(in_shape, str) or not in_shape:
            checks.fail("in_shape", accepted, in_shape, TypeError)
        shape = tuple(checks.count("in_shape", n, 1) for n in in_shape)
        self.feat_ext = nn.Identity() if feat_ext is None else feat_ext
        self.criterion = nn.BCEWithLogitsLoss() if criterion is None else criterion
        dim = get_feat_dim(self.feat_ext, shape)
        self.pool = UOTPooling(dim, **uot)
        self.classifier = nn.Linear(dim, 1, device=uot.get("device"), dtype=uot.get("dtype"))

    def forward(
        self, X: Tensor, mask: Tensor | None = None, return_att: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logit of each bag, (batch,).

        Args:
            X: bags, `(batch, bag, *in_shape)`.
            mask: 1 where an instance is present, (batch, bag). Default: all are.
            return_att: whether to return also the mass of the transport plan on each instance, (batch, bag),
                which sums to 1 in a bag, without a graph.
        """
        features = self.feat_ext(X)
        mask = _as_bool(mask)
        logits = self.classifier(self.pool(features, mask=mask)).squeeze(-1)
        return (logits, self.pool.scores(features, mask=mask)) if return_att else logits

    def compute_loss(
        self, Y: Tensor, X: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits of the bags, (batch,), and the loss by its name, as torchmil's trainer takes it.

        Args:
            Y: labels of the bags, (batch,).
            X, mask: as in `forward`.
        """
        logits = self(X, mask)
        return logits, {type(self.criterion).__name__: self.criterion(logits.float(), Y.float())}

    # No decorator here: the package's wrapper reads the names of arguments from the function's code.
    def predict(
        self, X: Tensor, mask: Tensor | None = None, return_inst_pred: bool = True
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits of the bags, (batch,), without a graph.

        Args:
            X, mask: as in `forward`.
            return_inst_pred: whether to return also what each instance adds to the logit of its bag, (batch,
                bag): above 0 it speaks for the positive class. These add up to the logit without its bias.
        """
        with torch.no_grad():
            features, mask = self.feat_ext(X), _as_bool(mask)
            logits = self.classifier(self.pool(features, mask=mask)).squeeze(-1)
            if not return_inst_pred:
                return logits
            g = self.classifier.weight[0]
            return logits, self.pool.scores(features, mask=mask, output=g)


def _as_bool(mask: Tensor | None) -> Tensor | None:
    """Return a mask as bool: those of torchmil's own batches are floats, 0 and 1, which our layers refuse."""
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        return mask
    checks.mask_values(mask, "a tensor of 0 and 1")
    return mask != 0
