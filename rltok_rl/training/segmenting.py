"""What a segmenter needs while it is trained, besides gradients: a threshold that keeps the rate as entropies move."""

from __future__ import annotations

from torch import Tensor

from rltok_rl.agents.segmenters import EntropyThreshold, Segmenter, calibrate
from rltok_rl.models.unet import UNet
from rltok_rl.training.parallel import Processes

EVERY = 16
"""Updates between calibrations; early ones follow each other faster."""


def calibration_due(update: int, *, last: bool = False) -> bool:
    """Whether a threshold is set anew after an update: the 1st, 2nd, 4th, 8th, every 16th and the last.

    Example:
        >>> [n for n in range(1, 50) if calibration_due(n)]
        [1, 2, 4, 8, 16, 32, 48]
    """
    return last or update % EVERY == 0 or (update < EVERY and update & (update - 1) == 0)


def calibrate_on(
    segmenter: Segmenter, model: UNet, byte_ids: Tensor, update: int, *, last: bool, processes: Processes
) -> None:
    """Set the threshold of an entropy segmenter to its rate on the text of an update, where that is due.

    With several processes it is the mean of theirs; other segmenters are left alone.

    Args:
        segmenter: after the update.
        model: the U-Net, after the update.
        byte_ids: [B, T] the text, of the last micro-batch.
        update: its number.
        last: whether it ends the training.
        processes: that train together.
    """
    if not isinstance(segmenter, EntropyThreshold) or not calibration_due(update, last=last):
        return
    found = processes.mean({"threshold": calibrate(segmenter, model, [byte_ids])})
    segmenter.threshold.fill_(found["threshold"])
