"""The examples in docstrings run, and print what they say. The main public objects each have one."""

from __future__ import annotations

import doctest
import sys

import pytest
import torch

import uotpool
from uotpool import zoo

SHOWN = [
    *(uotpool.UOTPooling, uotpool.UOTAssignment, uotpool.UOTPool2d, uotpool.replace_global_pool, zoo.build),
    *(uotpool.Problem, uotpool.uot_pool, uotpool.Learned),
]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.__name__)
def test_examples_run(shown):
    module = sys.modules[shown.__module__]
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=True)
    found = finder.find(
        shown, globs=vars(module) | vars(uotpool) | {"torch": torch, "nn": torch.nn, "uotpool": uotpool}
    )
    assert found, "expected an example"
    for example in found:
        said = []
        doctest.DocTestRunner().run(example, out=said.append)
        assert not said, "".join(said)
