"""Boundary viewer: an interactive page in one HTML file."""

from __future__ import annotations

from rltok_rl.renamed import renamed_names
from rltok_rl.viz.viewer.content import Segmented, Snapshot, TextView
from rltok_rl.viz.viewer.page import is_viewer_page, viewer_page

__all__ = ["Segmented", "Snapshot", "TextView", "is_viewer_page", "viewer_page"]

__getattr__ = renamed_names(globals(), {"Look": "Snapshot"})
