"""Python code of installed packages as a text to train on."""

from __future__ import annotations

import json

import pytest
from rltok_rl.experiments.studies import package_code


def test_a_package_gives_the_files_that_fit_in_an_order_of_its_own(tmp_path, monkeypatch, capsys):
    package = tmp_path / "grown"
    (package / "inner").mkdir(parents=True)
    for name, text in {"__init__.py": "", "b.py": "x = 1\n" * 10, "inner/a.py": "y = 'é'\n" * 10}.items():
        (package / name).write_text(text)
    (package / "data.txt").write_text("no code")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(package_code, "version", lambda _: "1.0")
    out = tmp_path / "new" / "code.jsonl"
    package_code.main([f"out={out}", "packages=[grown]"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["path"] for row in rows} == {"__init__.py", "b.py", "inner/a.py"}
    assert {row["package"] for row in rows} == {"grown"} and len(rows) == 3
    assert capsys.readouterr().out == f"{out}: 3 files, 150 bytes of grown 1.0\n"  # 60, and 90 with 2 bytes for é
    before = out.read_bytes()
    package_code.main([f"out={out}", "packages=[grown]"])
    assert out.read_bytes() == before
    largest = max(len(row["text"].encode()) for row in rows)
    package_code.main([f"out={out}", "packages=[grown]", f"most_bytes={largest}"])
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert kept == rows[: len(kept)] and sum(len(row["text"].encode()) for row in kept) <= largest
    assert len(kept) < 3


@pytest.mark.parametrize(
    ("option", "message"), [("packages=[no_such]", "got 'no_such'"), ("most_bytes=0", "most_bytes")]
)
def test_wrong_options_are_named(option, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        package_code.main([f"out={tmp_path / 'x'}", option])
