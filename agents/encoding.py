"""The learned boundary policy together with its encoder, for scoring stored windows again."""

from __future__ import annotations

import torch
from rltok_rl.agents.bernoulli import BernoulliActor, Terms
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.modules.tensordict_module.rnn import recurrent_mode

from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.models.unet import UNet


class EncodingBoundaryActor(BernoulliActor):
    """The boundary policy of a U-Net, computed from bytes.

    :class:`~rltok_rl.agents.LearnedBoundaryActor` reads the stored ``encoder_state``; this actor reads ``byte`` and
    encodes whole windows again, so epochs over a stored rollout train the encoder too. ``position`` separates the texts
    in a row. ``target_rate`` is read if the model has ``rate_embedding``. ``whole_rows`` promises that every row is one
    text, so that the host need not wait for an accelerator to count them.
    """

    def __init__(self, model: UNet, *, whole_rows: bool = False) -> None:
        keys = ["target_rate"] if model.config.rate_embedding else []
        super().__init__(_EncodingTerms(model, whole_rows), in_keys=["byte", "position", *keys])

    def forward(self, tensordict: TensorDictBase, **options: object) -> TensorDictBase:
        """Draw the boundaries of whole windows; recurrent mode only, because a single byte cannot be encoded."""
        if not recurrent_mode():
            raise RuntimeError(
                "EncodingBoundaryActor reads whole windows (torchrl.modules.set_recurrent_mode(True)); "
                "LearnedBoundaryActor decides byte by byte"
            )
        return super().forward(tensordict, **options)


class _EncodingTerms(Terms):
    def __init__(self, model: UNet, whole_rows: bool) -> None:
        super().__init__()
        self.model, self.whole_rows = model, whole_rows

    @property
    def cap(self) -> float | None:
        return self.model.boundary_cap

    @property
    def num_lags(self) -> int:
        return self.model.config.num_lags

    def forward(self, *features: Tensor) -> BoundaryTerms:
        byte_ids, position, *rate = features
        rates = rate[0].squeeze(-1) if rate else None  # [*B, T], constant within a text
        if byte_ids.dim() < 1 or position.shape != (*byte_ids.shape, 1):
            shapes = f"{[*byte_ids.shape]} and {[*position.shape]}"
            raise ValueError(f"windows must have byte [*B, T] and position [*B, T, 1], got {shapes}")
        place = position.squeeze(-1).reshape(-1, byte_ids.shape[-1])  # [B, T]
        _check_places(place, self.whole_rows)
        if self.whole_rows:
            row_rates = None if rates is None else rates.reshape(place.shape)[:, 0]  # [B]
            states = self.model.encode(byte_ids.reshape(place.shape), target_rate=row_rates)  # [B, T, D]
            return self.model.boundary_terms(states.view(*byte_ids.shape, -1), target_rate=rates)
        starts = place == 0
        text = starts.flatten().long().cumsum(0).view_as(place) - 1  # [B, T] index of each byte's text
        num_texts, longest = (torch.stack((text[-1, -1], place.max())) + 1).tolist()
        texts = byte_ids.new_zeros(num_texts, longest)  # [n, L]
        texts[text, place] = byte_ids.reshape(place.shape)
        text_rates = None  # [n]
        if rates is not None:
            text_rates = rates.new_empty(len(texts)).index_copy(0, text[starts], rates.reshape(place.shape)[starts])
        states = self.model.encode(texts, target_rate=text_rates)[text, place]  # [B, T, D]
        return self.model.boundary_terms(states.view(*byte_ids.shape, -1), target_rate=rates)


def _check_places(place: Tensor, whole_rows: bool) -> None:
    """Require windows [B, T] of whole texts; error messages with values on the CPU only."""
    begins = place[:, 0] == 0
    follows = place[:, 1:] == place[:, :-1] + 1
    if not whole_rows:
        follows = follows | (place[:, 1:] == 0)
    if place.device.type != "cpu":
        torch._assert_async(begins.all() & follows.all())
        return
    for row in (~begins).nonzero().flatten().tolist():
        raise ValueError(
            f"windows must begin with the first byte of a text, got position {int(place[row, 0])} in row {row}; "
            f"LearnedBoundaryActor scores steps from anywhere by their stored encoder_state"
        )
    for row, step in (~follows).nonzero().tolist():
        raise ValueError(
            f"windows must hold every byte of {'one' if whole_rows else 'a'} text in order, got position "
            f"{int(place[row, step + 1])} after {int(place[row, step])} in row {row}"
        )
