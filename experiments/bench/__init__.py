"""Fast paths timed against their references, side by side in one process, as ratios.

``python -m rltok_rl.experiments.bench [section ...]`` prints one table; ``--out`` also writes it to a folder.
"""
