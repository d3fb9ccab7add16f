"""A clear error for `torch.jit.script`, which these layers do not support."""

from __future__ import annotations

from typing import NoReturn


class NotScriptable:
    """Mixin for modules: `torch.jit.script` of the module, or of a model that holds it, raises a clear error.

    Without the mixin TorchScript stops at some line of ours that it cannot parse, and complains of
    that line.
    """

    def __prepare_scriptable__(self) -> NoReturn:
        """Raise the error. `torch.jit.script` first calls this on a module and on all modules in it."""
        raise RuntimeError(
            f"{type(self).__name__}: torch.jit.script (TorchScript) is not supported; export the model by "
            'torch.export.export, or by torch.onnx.export for other runtimes. The page "Deploy it" of the '
            "documentation has both"
        )
