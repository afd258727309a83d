"""Pictures of boundaries, on paper and in a terminal."""

from __future__ import annotations

from rltok_rl.viz.terminal import boundary_text

__all__ = ["boundary_text"]
