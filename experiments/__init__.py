"""Commands, studies, benchmarks, configurations and committed results.

Installed as ``rltok_rl.experiments``; import it by that name only.
"""
