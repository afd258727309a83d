"""Add the seeds of an earlier page of a comparison, whose runs are elsewhere or gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EQUAL = ("data", "model")
"""What both pages must have in common."""
JOINED = ("commands", "machines", "revisions")
"""Lists of which a page shows every entry once."""


def with_earlier(content: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a page with the rows of an earlier one; a seed that is in both is the newer one.

    Options that systems do not share are the earlier page's, which must have all systems.
    """
    for name in EQUAL:
        if content[name] != earlier[name]:
            raise ValueError(f"{name} of the earlier page must be {content[name]}, got {earlier[name]}")
    new = {system["name"]: system["rows"] for system in content["systems"]}
    known = [system["name"] for system in earlier["systems"]]
    if unknown := [name for name in new if name not in known]:
        raise ValueError(f"the earlier page must have the systems {', '.join(unknown)}; it has {', '.join(known)}")
    systems = []
    for system in earlier["systems"]:
        rows = {
            int(seed): row for source in (system["rows"], new.get(system["name"], {})) for seed, row in source.items()
        }
        systems.append({**system, "rows": dict(sorted(rows.items()))})
    joined = {name: sorted({*content[name], *earlier[name]}) for name in JOINED}
    return {**content, **joined, "systems": systems, "has_curves": False}
