"""Lists of names that other documentations keep, fetched where the net can be had and kept beside the build.

Sphinx would fetch them itself, and warn where it cannot. A build without a network is no mistake: its names of other
libraries are code, and not links.
"""

from __future__ import annotations

import http.client
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SITES = {
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "torchrl": "https://docs.pytorch.org/rl/stable/",
    "tensordict": "https://docs.pytorch.org/tensordict/stable/",
    "gymnasium": "https://gymnasium.farama.org/",
}
"""Documentations that ours links into, by the names that they go by."""
_SIGN = b"# Sphinx inventory version 2"


def reachable(sites: dict[str, str], folder: Path, *, seconds: float = 5.0) -> dict[str, tuple[str, str]]:
    """Sites whose inventory is at hand, as ``intersphinx_mapping`` takes them.

    Args:
        sites: addresses by name.
        folder: where inventories are kept; one that is there already serves where none can be fetched.
        seconds: to wait for each; they are asked side by side.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def fetch(name: str) -> bool:
        kept = folder / f"{name}.inv"
        try:
            with urllib.request.urlopen(f"{sites[name]}objects.inv", timeout=seconds) as answer:
                found = answer.read()
        except (OSError, ValueError, http.client.HTTPException):
            found = b""
        if found.startswith(_SIGN):  # a portal may answer with a page of its own
            part = kept.with_suffix(f".{os.getpid()}")
            part.write_bytes(found)
            part.replace(kept)
        return kept.exists()

    with ThreadPoolExecutor(max(1, len(sites))) as pool:
        there = dict(zip(sites, pool.map(fetch, sites), strict=True))
    return {name: (sites[name], str(folder / f"{name}.inv")) for name in sites if there[name]}
