"""The citation has the version and the segmenters of the library."""

from __future__ import annotations

import re

import yaml

from rltok_rl import __version__

from .layout import ROOT


def test_the_citation_has_this_version_and_its_words_are_segmenters():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    notes = [work.get("notes", "") for work in (citation["preferred-citation"], *citation["references"])]
    named = {
        word for note in notes for listed in re.findall(r"segmenter=([\w, -]+)", note) for word in listed.split(", ")
    }
    folder = ROOT / "experiments" / "conf" / "segmenter"
    assert len(named) >= 8 and named <= {path.stem for path in folder.glob("*.yaml")}
