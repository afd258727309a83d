"""One training and its folder on disk: train, record, resume, read back."""

import rltok_rl.start_method  # noqa: F401 - before torchrl
