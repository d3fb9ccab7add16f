"""Import timm where torchvision's own operators are missing, as beside a CPU build of torch.

The package index may have torchvision for CUDA builds of torch only. Its compiled part does not load
beside a CPU build, and its import then fails on operators that timm never calls. Declared here, they let
the import pass. In site-packages such a torchvision would break transformers, which imports each
torchvision that it finds. So `make` puts timm and torchvision into a folder of their own, and only the
processes of tests that ask for them have that folder on their path.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parent.parent / ".venv" / "timm"  # as in the Makefile
_declared: list[torch.library.Library] = []  # a declaration lasts as long as its library


def import_timm() -> Any:
    """Return the package timm, from site-packages or from the folder of `make`, or skip the test."""
    if importlib.util.find_spec("timm") is None and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    if importlib.util.find_spec("torchvision") is not None and not _loads() and not _declared:
        _declared.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _declared[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return pytest.importorskip("timm", reason="timm is not installed: `make test` installs it")


def _loads() -> bool:
    """Return whether torchvision can be imported as it is."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "does not exist" not in str(error):
            raise
        return False
    return True
