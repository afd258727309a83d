"""The parts of the demo: its plan, two trainings side by side, what they found, the picture of it, the words around."""
