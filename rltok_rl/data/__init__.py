"""Byte streams: where windows of text come from."""

from __future__ import annotations

from rltok_rl.data.local import local_prose
from rltok_rl.data.source import TextSource, Windows

__all__ = ["TextSource", "Windows", "local_prose"]
