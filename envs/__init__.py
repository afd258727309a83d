"""The byte stream and its language model as a TorchRL environment, with adapters for gymnasium.

Installed as ``rltok_rl.envs``; import it by that name only.
"""
