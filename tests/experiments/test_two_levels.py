"""A second level by configuration: where it routes, its loss comes with it."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.experiments.runs.build import make_loss, make_model

from .configured import QUICK, configured


@pytest.mark.parametrize("actor", ["learned", "uniform"])
def test_a_second_level_that_routes_brings_its_loss(actor):
    def built(level: str):
        config = configured(*QUICK, f"actor={actor}", "model=tiny", f"+model.overrides.second_level={level}")
        model = make_model(config, torch.device("cpu"))
        return model, make_loss(config, model)

    model, loss = built("routing")
    assert float(loss.coefficient("second_level")) == pytest.approx(0.03)
    assert loss.terms["second_level"].target_rate == model.config.second_rate
    for level in ("stride", "null"):
        assert "second_level" not in built(level)[1].terms
