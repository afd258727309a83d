"""Boundaries as a page to look around in: one HTML file with everything in it."""

from __future__ import annotations

from rltok_rl.viz.viewer.content import Look, Segmented, TextView
from rltok_rl.viz.viewer.page import is_viewer_page, viewer_page

__all__ = ["Look", "Segmented", "TextView", "is_viewer_page", "viewer_page"]
