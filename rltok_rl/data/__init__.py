"""Byte streams: where windows of text come from."""

from __future__ import annotations

from rltok_rl.data.local import local_code, local_prose
from rltok_rl.data.source import RepeatedSource, TextSource, Windows

__all__ = ["RepeatedSource", "TextSource", "Windows", "local_code", "local_prose"]
