"""TorchScript by `torch.jit.script` is not for these layers, and this says so."""

from __future__ import annotations

from typing import NoReturn


class NotScriptable:
    """Mixin for modules: `torch.jit.script`, of one or of a model that holds one, ends in a clear error.

    Without it TorchScript stops at some line of ours that it cannot parse, and its message is about that line.
    """

    def __prepare_scriptable__(self) -> NoReturn:
        """What `torch.jit.script` calls on a module and all modules in it, before anything else."""
        raise RuntimeError(
            f"{type(self).__name__}: torch.jit.script (TorchScript) is not supported; export the model by "
            'torch.export.export, or by torch.onnx.export for other runtimes. The page "Deploy it" of the '
            "documentation has both"
        )
