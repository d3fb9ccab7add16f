"""A layer's options as plain data, and the layer made from them again."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from uotpool import CLASSIC, UOTPooling
from uotpool.nn.priors import SamplePrior

D = 6
LAYERS = {
    "default": lambda: UOTPooling(D),
    "classic": lambda: UOTPooling.classic(D),
    "mean": lambda: UOTPooling.mean(D),
    "max": lambda: UOTPooling.max(D, temperature=0.01),
    "attention": lambda: UOTPooling.attention(D, hidden=3),
    "start": lambda: UOTPooling(D, start="mean"),
    "start-one": lambda: UOTPooling(D, start="mean", **CLASSIC),
    "badmm-q": lambda: UOTPooling(
        D, solver="badmm-q", K=2, shared=True, alpha0=None, init={"alpha0": torch.tensor(0.3)}, rho=[1.0, 2.0]
    ),
    "badmm-e": lambda: UOTPooling.classic(D, solver="badmm-e", p0="learned", q0="learned", impl="reference"),
    "converged": lambda: UOTPooling(D, K="converged", tol=1e-5, max_iter=50),
    "paper": lambda: UOTPooling.classic(D, formulation="paper", readout="authors"),
    "sum": lambda: UOTPooling(D, readout="sum", start="mean"),
    "no-modules": lambda: UOTPooling(D, K=0),
    "tensor": lambda: UOTPooling(D, K=2, alpha0=torch.tensor([1.0, 0.5]), alpha2=0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_comes_back_from_json(name):
    layer = LAYERS[name]()
    config = json.loads(json.dumps(layer.get_config()))
    twin = UOTPooling.from_config(config)
    assert twin.get_config() == layer.get_config() == config
    assert repr(twin) == repr(layer)
    assert {k: v.shape for k, v in twin.state_dict().items()} == {
        k: v.shape for k, v in layer.state_dict().items()
    }
    twin.load_state_dict(layer.state_dict())
    X = torch.randn(3, 5, D, generator=torch.Generator().manual_seed(0))
    assert torch.equal(twin(X), layer(X))
    assert twin.start == layer.start


def test_every_option_is_named_and_survives_another_default():
    """All arguments but where the layer lives: what is written today does not follow later defaults."""
    config = UOTPooling(D).get_config()
    assert config["alpha0"] == 1.0
    assert config["scale"] == "feature"
    assert config["K"] == 4
    assert config["alpha1"] == "log"

    class Later(UOTPooling):
        def __init__(self, dim, *, alpha1=123.0, **options):
            super().__init__(dim, alpha1=alpha1, **options)

    with pytest.raises(ValueError, match="config: expected options of Later"):
        Later.from_config(config)  # its signature does not name the others
    UOTPooling.__init__.__kwdefaults__["alpha1"], before = 123.0, "log"
    try:
        assert UOTPooling.from_config(config).get_config() == config
    finally:
        UOTPooling.__init__.__kwdefaults__["alpha1"] = before


def test_fixed_weights_have_the_values_in_force():
    layer = UOTPooling(D)
    layer.alpha0.fill_(0.25)
    assert layer.get_config()["alpha0"] == 0.25
    assert "alpha0=0.25" in repr(layer)
    with torch.device("meta"):
        assert UOTPooling(D).get_config()["alpha0"] == 1.0


def test_the_place_is_an_option_of_from_config():
    config = UOTPooling(D, dtype=torch.float64).get_config()
    assert "dtype" not in config
    assert "device" not in config
    made = UOTPooling.from_config(config, dtype=torch.float64, K=3)
    assert made.raw_scale.dtype == torch.float64
    assert made.K == 3


def test_a_prior_of_the_users_own_is_given_again():
    class Own(SamplePrior):
        pass

    for q0 in (nn.Linear(D, 1), Own(D)):
        config = UOTPooling(D, q0=q0).get_config()
        assert config["q0"] == "module"
        with pytest.raises(ValueError, match=r"q0: expected q0=\.\.\., a module"):
            UOTPooling.from_config(config)
        assert UOTPooling.from_config(config, q0=q0).q0 is q0


def test_wrong_configs_are_refused():
    config = UOTPooling(D).get_config()
    with pytest.raises(ValueError, match=r"did you mean 'alpha0'\?\), got 'alpha_0'"):
        UOTPooling.from_config(config | {"alpha_0": 1.0})
    with pytest.raises(ValueError, match=r"config: expected options of UOTPooling.*got 'dtype'"):
        UOTPooling.from_config(config | {"dtype": "float32"})
    with pytest.raises(ValueError, match="config: expected dim"):
        UOTPooling.from_config({"K": 2})
    with pytest.raises(TypeError, match="config: expected what get_config returned, a dict, got"):
        UOTPooling.from_config("{}")
    for q0 in ({"width": 3}, {}):
        with pytest.raises(ValueError, match=r'q0: expected "uniform", "learned", {"hidden": width}'):
            UOTPooling(D, q0=q0)


def test_numbers_of_numpy_become_plain():
    numpy = pytest.importorskip("numpy")
    pool = UOTPooling(D, K=numpy.int64(3), alpha0=numpy.float32(0.5), init=None)
    assert json.loads(json.dumps(pool.get_config()))["K"] == 3
    converged = UOTPooling(D, K="converged", tol=numpy.float32(1e-5), max_iter=numpy.int64(9))
    assert json.loads(json.dumps(converged.get_config()))["max_iter"] == 9
