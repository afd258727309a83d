"""The prose that ``rltok_rl.data.local_prose`` reads in tests."""

from pathlib import Path

topics = {"execmodel": (Path(__file__).parents[2] / "prose.txt").read_text(encoding="utf-8")}
