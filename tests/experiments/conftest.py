"""What the tests of the commands share: a small model, and the folder that it is saved in."""

from __future__ import annotations

import pytest
import torch

from rltok_rl import UNet, preset


@pytest.fixture(scope="module")
def model() -> UNet:
    torch.manual_seed(0)
    return UNet(preset("tiny", boundary_scale=1.0, target_rate=0.3)).eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> str:
    return str(model.save_pretrained(tmp_path_factory.mktemp("models") / "tiny"))
