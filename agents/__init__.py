"""Boundary policies as TorchRL modules: the learned one, and fixed rules to compare it with.

Installed as ``rltok_rl.agents``; import it by that name only.
"""
