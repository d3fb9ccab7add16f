"""`reduce="sum"`: N times the weighted mean, so that the output sees how large a set is."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.cases import FORMULATIONS, SOLVERS, module_weights, problem
from tests.spelling import make_layer, uot_plan, uot_pool
from uotpool import Learned, UOTPool2d, UOTPooling

pytestmark = pytest.mark.usefixtures("every_implementation")

D, SIZES = 4, (3, 0, 5, 1)


def close(got, want, bound=tol.F64):
    torch.testing.assert_close(got, want, rtol=bound, atol=bound)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_formula(solver, formulation):
    """N sum_n X P / sum_n P, set by set from the plan, with N the number of samples whose prior is not 0."""
    X, p0, q0 = problem(3, 7, D)
    q0[1, 2:5] = 0.0
    q0 = q0 / q0.sum(1, keepdim=True)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[2, :4] = False
    q0[2] = q0[2] * mask[2] / (q0[2] * mask[2]).sum()
    how = {"p0": p0, "q0": q0, "mask": mask, "solver": solver, "formulation": formulation}
    weights = module_weights(solver, 3)
    y = uot_pool(X, *weights, readout="sum", **how)
    P = uot_plan(X, *weights, **how)
    for b, N in enumerate((7, 4, 3)):
        close(y[b], N * (X[b] * P[b]).sum(0) / P[b].sum(0))


def test_a_set_that_is_there_twice_pools_to_twice_as_much():
    layer = make_layer(D, readout="sum").double()
    X = torch.randn(2, 5, D, dtype=torch.float64)
    close(layer(torch.cat([X, X], 1)), 2 * layer(X))
    mean = make_layer(D).double()
    close(mean(torch.cat([X, X], 1)), mean(X))


def test_known_limits():
    """It begins as sum pooling with a scale of 0, and the mean of Proposition 1 becomes the sum."""
    X = torch.randn(2, 5, D)
    for layer in (make_layer(D, start="mean", readout="sum"), UOTPooling.mean(D, reduce="sum")):
        close(layer(X), X.sum(1), tol.F32)
    close(make_layer(D, K=0, readout="sum")(X), X.sum(1), tol.F32)
    top = UOTPooling.max(D, 1e-4, reduce="sum").double()(X.double())
    close(top, 5 * X.double().amax(1), tol.SLOPE)


def test_half_precision_counts_exactly():
    """2,049 is no number of float16: a count in that type would be 2,048."""
    X = torch.full((1, 2049, 1), 0.25, dtype=torch.float16)
    assert make_layer(1, readout="sum")(X).item() == float(torch.tensor(2049 * 0.25).half())
    many = torch.full((1, 4099, 1), 1.0, dtype=torch.bfloat16)
    assert make_layer(1, readout="sum")(many).item() == float(torch.tensor(4099.0).bfloat16())


def test_windows_at_the_border_have_fewer_samples():
    x = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    ours = UOTPool2d(3, 3, stride=2, padding=1, reduce="sum", scale=Learned(0.0)).double()
    counted = torch.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=True) * 9
    close(ours(x), counted)


def test_contributions_add_up_to_the_output():
    layer = make_layer(D, readout="sum").double()
    head = torch.nn.Linear(D, 1, bias=False).double()
    X = torch.randn(3, 6, D, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [2], [4]])
    scores = layer.scores(X, mask=mask, output=head)
    close(scores.sum(1), head(layer(X, mask=mask)).squeeze(1))
