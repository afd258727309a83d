"""Pictures of runs and of boundaries, on paper and in a terminal."""

from __future__ import annotations

from rltok_rl.viz.frames import boundary_picture
from rltok_rl.viz.terminal import boundary_pieces, boundary_text

__all__ = ["boundary_picture", "boundary_pieces", "boundary_text"]
