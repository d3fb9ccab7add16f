"""The examples in docstrings run, and print what they say. The main public objects each have one."""

from __future__ import annotations

import doctest
import sys

import pytest
import torch

import uotpool
from tests.spelling import duality_gap, objective, plan_stats, uot_plan, uot_pool
from uotpool import zoo

SHOWN = [
    *(uotpool.UOTPooling, uotpool.UOTAssignment, uotpool.UOTPool2d, uotpool.replace_global_pool, zoo.build),
    *(uot_pool, uot_plan, objective, duality_gap, plan_stats),
    uotpool.suggest_rho,
]


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.__name__)
def test_examples_run(shown):
    module = sys.modules[shown.__module__]
    finder = doctest.DocTestFinder(recurse=False, exclude_empty=True)
    found = finder.find(shown, globs=vars(module) | {"torch": torch})
    assert found, "expected an example"
    for example in found:
        said = []
        doctest.DocTestRunner().run(example, out=said.append)
        assert not said, "".join(said)
