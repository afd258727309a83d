"""Models evaluated with other boundaries than their own."""

from __future__ import annotations

import json

import pytest
from rltok_rl.experiments.runs.segmenters import rule_segmenter
from rltok_rl.experiments.studies import swapped_boundaries

from rltok_rl.models import UNet, preset


def test_own_boundaries_are_those_of_the_comparison(compared, capsys):
    swapped_boundaries.main([f"comparison={compared}", "rules=[uniform,spacebyte]", "offsets=[3]", "windows=20"])
    header, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert header == "| trained with | own | uniform | spacebyte | spacebyte, 3 later |"
    found = {row.split("|")[1].strip(): [float(cell) for cell in row.split("|")[2:-1]] for row in rows}
    assert set(found) == {"uniform", "bpe", "learned"}
    written = json.loads((compared / "uniform" / "evaluation.json").read_text())["corpus_bits_per_byte"]
    own, uniform, space, later = found["uniform"]
    assert own == uniform == pytest.approx(written, abs=5e-4) and len({uniform, space, later}) == 3
    assert found["learned"][0] != found["learned"][1]


def test_systems_with_a_trained_segmenter_have_no_row(gumbel_run, tmp_path, capsys):
    (tmp_path / "gumbel").symlink_to(gumbel_run)
    assert swapped_boundaries.bits_with(tmp_path / "gumbel", [("own", 0)], 8, trust_data=True) is None


def test_folder_without_systems_is_refused(tmp_path):
    with pytest.raises(ValueError, match="comparison must hold evaluated systems, got"):
        swapped_boundaries.main([f"comparison={tmp_path}"])


def test_rules_that_need_training_are_refused():
    with pytest.raises(ValueError, match=r"choice must be one of \['spacebyte', .* got 'hnet'"):
        rule_segmenter("hnet", UNet(preset("tiny")))


@pytest.mark.parametrize(
    ("option", "message"),
    [("rules=[hnet]", "rules must be among"), ("windows=0", "windows must"), ("offsets=[0]", "offsets must lie in")],
)
def test_wrong_options_are_named(option, message):
    with pytest.raises(ValueError, match=message):
        swapped_boundaries.main([option])
