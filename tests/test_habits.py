"""What surrounds the code can be read by what reads it, and says what is so: the citation, the templates, the hooks."""

from __future__ import annotations

import re

import pytest
import yaml

from rltok_rl import __version__

from .layout import ROOT

FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
WORKS = [CITATION["preferred-citation"], *CITATION["references"]]


def test_the_citation_is_of_this_version():
    assert (CITATION["cff-version"], CITATION["type"]) == ("1.2.0", "software")
    assert {"message", "title", "authors"} <= set(CITATION)
    assert CITATION["version"] == __version__
    project = (ROOT / "pyproject.toml").read_text()
    assert f'license = "{CITATION["license"]}"' in project and f'name = "{CITATION["authors"][0]["name"]}"' in project


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work["title"].split()[0].strip(":"))
def test_a_work_has_what_the_format_asks_for(work):
    """CFF 1.2.0: a type that it knows, a title, authors that are persons or entities, an integer year."""
    assert work["type"] in ("article", "conference-paper") and work["title"]
    assert isinstance(work["year"], int) and 2017 < work["year"] < 2027
    assert work["authors"] and all({"family-names", "given-names"} == set(author) for author in work["authors"])
    assert work["type"] == "article" or "name" in work["conference"]
    known = {"type", "title", "authors", "year", "url", "identifiers", "collection-title", "conference"}
    assert set(work) <= known | {"start", "end", "notes"}


def test_prior_art_is_there_and_its_words_are_segmenters():
    from rltok_rl.agents.segmenters import SEGMENTERS

    authors = {work["authors"][0]["family-names"] for work in WORKS}
    assert authors == {"Dauncey", "Neubig", "Kreutzer", "Nawrot", "Hwang", "Pagnoni", "Slagle", "Yu"}
    conf = {path.stem for path in (ROOT / "experiments" / "conf" / "segmenter").glob("*.yaml")}
    named = [
        word
        for work in WORKS
        for listed in re.findall(r"segmenter=([\w, -]+)", work.get("notes", ""))
        for word in listed.split(", ")
    ]
    assert len(named) >= 8 and set(named) <= conf
    assert {"hnet", "spacebyte"} <= set(SEGMENTERS)


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_can_be_shown(form):
    content = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(content)
    kinds = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
    assert all(field["type"] in kinds and field["attributes"]["label"] for field in content["body"])
    ids = [field["id"] for field in content["body"]]
    assert len(set(ids)) == len(ids) and any(f.get("validations", {}).get("required") for f in content["body"])


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


def test_a_pull_request_is_asked_for_every_kind_of_proof():
    asked = (ROOT / ".github" / "pull_request_template.md").read_text()
    for word in ("golden losses", "three seeds", "paired", "make test", "make check", "CHANGELOG.md"):
        assert word in asked and word in (ROOT / "CONTRIBUTING.md").read_text(), word
