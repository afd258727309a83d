"""Files around the code: the citation, issue forms, hooks."""

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


def test_issue_forms_can_be_shown():
    forms = [path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    for form in forms:
        content = yaml.safe_load(form.read_text())
        assert {"name", "description", "body"} <= set(content), form
        kinds = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert all(field["type"] in kinds and field["attributes"]["label"] for field in content["body"]), form
        ids = [field["id"] for field in content["body"]]
        assert len(set(ids)) == len(ids) and any(f.get("validations", {}).get("required") for f in content["body"]), (
            form
        )
    assert forms


def test_hooks_do_what_make_check_does_and_fetch_nothing():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [source["repo"] for source in hooks] == ["local"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in hooks[0]["hooks"]:
        assert hook["language"] == "system"
        tool, *rest = hook["entry"].split()
        if tool == "make":
            assert re.search(rf"^{rest[0]}:", makefile, flags=re.M)
        else:
            assert f"$(BIN)/{tool.removeprefix('.venv/bin/')} {rest[0]}" in makefile
