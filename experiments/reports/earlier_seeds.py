"""Add the seeds of an earlier page of a comparison, whose runs are elsewhere or gone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltok_rl.foreign import MOST_STATE, read_json

EQUAL_IN_SYSTEM = ("estimator", "target_rate", "target_rates", "oracle", "parameters", "rows_per_text")
"""Columns that all seeds of a system share."""
EQUAL_IN_ALL = ("counts", "split_by", "predicted")
"""Columns that all rows share: the held-out text."""
MERGED = ("commands", "machines", "revisions")
"""Lists that are merged without duplicates."""
NEEDED = {"data", "model", "systems", *MERGED}


def read_earlier(path: Path) -> dict[str, Any]:
    """Read the ``compare-seeds.json`` of an earlier page."""
    content = read_json(path, MOST_STATE)
    systems = content.get("systems") if isinstance(content, dict) and set(content) >= NEEDED else None
    if not isinstance(systems, list) or not all(isinstance(x, dict) and {"name", "rows"} <= set(x) for x in systems):
        raise ValueError(f"{path} must be the compare-seeds.json of a comparison over seeds; it has other entries")
    return content


def with_earlier(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the content of a page with the rows of the earlier page in ``path``.

    New rows replace earlier ones of the same seed. The earlier page must have all systems, and its options are kept.
    """
    earlier = read_earlier(path)
    new = {system["name"]: system["rows"] for system in content["systems"]}
    known = [system["name"] for system in earlier["systems"]]
    if unknown := [name for name in new if name not in known]:
        raise ValueError(f"systems of {path} must include {', '.join(unknown)}, got {', '.join(known)}")
    for name in ("data", "model"):  # fewer systems share more fields of the model
        for field in content[name].keys() & earlier[name].keys():
            _require_equal(f"{name}.{field}", content[name][field], earlier[name][field], path)
    systems = []
    for system in earlier["systems"]:
        name = system["name"]
        rows = {int(seed): row for some in (system["rows"], new.get(name, {})) for seed, row in some.items()}
        systems.append({**system, "rows": dict(sorted(rows.items()))})
    first = systems[0]["rows"][min(systems[0]["rows"])]
    for system in systems:
        own = next(iter(system["rows"].values()))
        for seed, row in system["rows"].items():
            of_row = f"of {system['name']!r} in seed {seed}"
            for columns, other in ((EQUAL_IN_ALL, first), (EQUAL_IN_SYSTEM, own)):
                for column in columns:
                    _require_equal(f"{column} {of_row}", row.get(column), other.get(column), path)
    merged = {name: sorted({*content[name], *earlier[name]}) for name in MERGED}
    return {**content, "model": earlier["model"], **merged, "systems": systems, "has_curves": False}


def _require_equal(name: str, value: Any, other: Any, path: Path) -> None:
    """Require equal values, so that seeds can be compared."""
    if value != other:
        shown = " and ".join(f"{str(x)[:60]}" for x in (value, other))
        raise ValueError(f"{name} must be equal in {path} and in all runs, got {shown}")
