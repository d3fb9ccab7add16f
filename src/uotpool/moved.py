"""Import paths of version 0.1 that are gone, each with the path that has its contents now.

Python would only say that there is no such module. A finder behind all others sees the names that
nothing else finds, and raises an error that names the new path for those that we know.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

# Python imports a package before what is below it, so that a package stands for its modules too.
MOVED = {
    "uotpool.dispatch": "uotpool.backends",
    "uotpool.experiments": "uotpool_experiments",
    "uotpool.kernels": "uotpool.backends.cpu",
    "uotpool.layout": "uotpool.sets",
    "uotpool.segments": "uotpool.sets.segments",
    "uotpool.solvers.converged": "uotpool.solvers.newton",
    "uotpool.solvers.paper": "uotpool.solvers.published",
    "uotpool.solvers.weights": "uotpool.problem",
    "uotpool.surgery": "uotpool.nn.replace",
    "uotpool.zoo.arrange": "uotpool.sets.padding",
    "uotpool.zoo.base": "uotpool.nn.base",
    "uotpool.zoo.uot": "uotpool.nn.pooling",
}


class _MovedFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Raise an error for a moved module, and leave all others to the error of Python.

        It is no ModuleNotFoundError, which `from uotpool import surgery` would replace by another message.
        """
        if fullname not in MOVED:
            return
        new = MOVED[fullname]
        where = new if new.startswith("uotpool.") else f"{new} (pip install uotpool-experiments)"
        raise ImportError(
            f"{fullname} is not in uotpool 0.2 and later: it moved to {where}. The page 'From 0.1 to 0.2' of"
            " the documentation has all that changed",
            name=fullname,
        )


sys.meta_path.append(_MovedFinder())
