"""Languages with a known answer: endless text whose best boundaries, and their worth, can be computed."""

from __future__ import annotations

from rltok_rl.data.languages.automaton import Automaton
from rltok_rl.data.languages.boundary_language import Language, visible_bytes
from rltok_rl.data.languages.lexicon import Lexicon
from rltok_rl.data.languages.recall import Recall
from rltok_rl.data.languages.suite_tasks import TASKS, Task

__all__ = ["Automaton", "Language", "Lexicon", "Recall", "TASKS", "Task", "visible_bytes"]
