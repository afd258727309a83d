"""What is run: the demo, benchmarks, configurations, and results with the commands that made them.

Installed as ``rltok_rl.experiments``; import it by that name only.
"""
