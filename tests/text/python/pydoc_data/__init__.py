"""Shadows the documentation that this Python ships, see ``tests/fixed_text.py``."""
