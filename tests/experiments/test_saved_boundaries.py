"""A new model that reads the boundaries of a saved one."""

from __future__ import annotations

import json

import pytest
import torch
from rltok_rl.agents.segmenters import load_segmenter, make_segmenter, read_window
from rltok_rl.agents.segmenters.rule_based import learned
from rltok_rl.experiments.compare import train_systems
from rltok_rl.experiments.studies import swapped_boundaries
from rltok_rl.experiments.studies.comparisons import load_system
from rltok_rl.experiments.studies.saved_boundaries import SavedBoundaries

from rltok_rl.diagnostics.segmenter_laws import broken_segmenter_laws
from rltok_rl.models import UNet, preset

from .configured import configured
from .conftest import COMPARE


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    model = UNet(preset("tiny", width=16, num_lags=3)).double()
    torch.nn.init.normal_(model.boundary_head.projection.weight)  # a policy that depends on its state
    return model.save_pretrained(tmp_path_factory.mktemp("saved"))


def test_boundaries_are_those_of_the_saved_policy_and_obey_the_laws(saved):
    old, new = UNet.from_pretrained(saved), UNet(preset("tiny", width=32)).double()
    segmenter, byte_ids, uniforms = SavedBoundaries(new, str(saved)), torch.randint(256, (4, 64)), torch.rand(4, 64)
    theirs = read_window(old, learned(old), byte_ids, uniforms=uniforms).segments.boundaries
    ours = read_window(new, segmenter, byte_ids, uniforms=uniforms).segments.boundaries
    assert torch.equal(ours, theirs) and 0.05 < theirs.float().mean() < 0.95
    assert not [*segmenter.parameters()] and not segmenter.state_dict() and segmenter.draws_at_random
    assert broken_segmenter_laws(lambda model: SavedBoundaries(model, str(saved))) == {}


def test_a_comparison_trains_a_new_model_on_boundaries_of_finished_systems(compared, tmp_path, monkeypatch):
    monkeypatch.setattr(train_systems, "write_report", lambda folder: folder / "report.md")
    name = f"{SavedBoundaries.__module__}:SavedBoundaries"
    folders = {"even": compared / "uniform", "own": compared / "learned"}
    variants = {
        system: {"segmenter": {"name": name, "options": {"folder": str(folder)}}} for system, folder in folders.items()
    }
    config = configured(*COMPARE, f"compare.systems=[{','.join(variants)}]", f"out={tmp_path}")
    config.compare.variants = variants
    train_systems.run(config, "the command")
    old, new = (
        {row["system"]: row for row in json.loads((folder / "compare.json").read_text())["systems"]}
        for folder in (compared, tmp_path)
    )
    assert new["even"]["rate"] == pytest.approx(old["uniform"]["rate"])
    assert new["even"]["bits_per_byte"] == pytest.approx(old["uniform"]["bits_per_byte"], abs=1e-5)  # the same run
    own = load_segmenter(tmp_path / "own", UNet.from_pretrained(tmp_path / "own"), trust_code=True)
    byte_ids, uniforms = torch.randint(256, (2, 64)), torch.rand(2, 64)
    policy = UNet.from_pretrained(compared / "learned")
    theirs = read_window(policy, learned(policy), byte_ids, uniforms=uniforms).segments.boundaries
    assert torch.equal(own(torch.zeros(2, 64, 16), byte_ids, uniforms=uniforms).boundaries, theirs)
    model, again = load_system(tmp_path / "own")  # no other custom code
    assert isinstance(again, SavedBoundaries) and model.config.width == 16
    (bits,) = swapped_boundaries.bits_with(tmp_path / "even", [("own", 0)], 20, trust_data=False)
    assert bits == pytest.approx(new["even"]["bits_per_byte"], abs=1e-5)
    file = tmp_path / "own" / "model" / "segmenter.json"
    file.write_text(file.read_text().replace(name, "rltok_rl.utils:check_count"))
    with pytest.raises(ValueError, match="names custom code, 'rltok_rl.utils:check_count', which would be executed"):
        load_system(tmp_path / "own")


def test_segmenters_with_weights_are_replayed_and_those_that_look_ahead_refused(compared, gumbel_run):
    new = UNet(preset("tiny", width=16))
    segmenter, byte_ids, uniforms = (
        SavedBoundaries(new, str(gumbel_run)),
        torch.randint(256, (2, 32)),
        torch.rand(2, 32),
    )
    with torch.device("meta"):
        assert SavedBoundaries(new, str(gumbel_run)).saved.embedding.weight.device.type == "cpu"
    old = UNet.from_pretrained(gumbel_run)
    theirs = read_window(old, load_segmenter(gumbel_run, old), byte_ids, uniforms=uniforms).segments.boundaries
    assert torch.equal(segmenter(torch.zeros(2, 32, 16), byte_ids, uniforms=uniforms).boundaries, theirs)
    for folder, message in ((compared / "bpe", "earlier bytes alone, got"), ("pocket", "or of a run, got 'pocket'")):
        with pytest.raises(ValueError, match=message):
            SavedBoundaries(new, str(folder))


def test_marks_must_agree(saved):
    with pytest.raises(ValueError, match="folder must hold a model with begin_of_text=True, as the one that"):
        SavedBoundaries(UNet(preset("tiny", begin_of_text=True, num_special=1)), str(saved))
    assert make_segmenter(
        "rltok_rl.experiments.studies.saved_boundaries:SavedBoundaries", UNet(preset("tiny")), folder=saved
    )
