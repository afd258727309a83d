"""The learned policy with its encoder, for scoring stored windows again."""

from __future__ import annotations

import torch
from rltok_rl.agents.bernoulli import BernoulliActor, Terms
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.modules.tensordict_module.rnn import recurrent_mode

from rltok_rl.models.heads import BoundaryTerms
from rltok_rl.models.unet import UNet


class EncodingBoundaryActor(BernoulliActor):
    """The boundary policy of a U-Net, from the bytes up.

    Where :class:`~rltok_rl.agents.LearnedBoundaryActor` reads the stored ``encoder_state``, this one reads ``byte`` and
    encodes whole windows again, so that epochs over a stored rollout train the encoder too. Token layers and decoder
    never run. Windows must begin with the first byte of a text; texts that begin later in a row are told apart by
    ``position``, and never see each other. Where the model has ``rate_embedding``, ``target_rate`` is read too.

    Args:
        model: the U-Net.
        whole_rows: every row is one text. The host of an accelerator has to wait for the number of texts otherwise.
    """

    def __init__(self, model: UNet, *, whole_rows: bool = False) -> None:
        reads = ["target_rate"] if model.config.rate_embedding else []
        super().__init__(_EncodingTerms(model, whole_rows), in_keys=["byte", "position", *reads])

    def forward(self, tensordict: TensorDictBase, **options: object) -> TensorDictBase:
        """Draw the boundaries of whole windows; only in recurrent mode, a single byte cannot be encoded."""
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
        byte_ids, position, *given = features
        rates = given[0].squeeze(-1) if given else None  # [*B, T], one per text
        if byte_ids.dim() < 1 or position.shape != (*byte_ids.shape, 1):
            raise ValueError(
                f"windows must have byte [*B, T] and position [*B, T, 1], got {[*byte_ids.shape]} and "
                f"{[*position.shape]}"
            )
        place = position.squeeze(-1).reshape(-1, byte_ids.shape[-1])  # [n, T]
        _check_places(place, self.whole_rows)
        if self.whole_rows:
            told = None if rates is None else rates.reshape(place.shape)[:, 0]  # [n]
            states = self.model.encode(byte_ids.reshape(place.shape), target_rate=told)  # [n, T, D]
            return self.model.boundary_terms(states.view(*byte_ids.shape, -1), target_rate=rates)
        starts = place == 0
        text = starts.flatten().long().cumsum(0).view_as(place) - 1  # [n, T] which text each byte belongs to
        num_texts, longest = (torch.stack((text[-1, -1], place.max())) + 1).tolist()
        texts = byte_ids.new_zeros(num_texts, longest)  # [texts, L]
        texts[text, place] = byte_ids.reshape(place.shape)
        of_texts = None  # [texts]
        if rates is not None:
            of_texts = rates.new_empty(len(texts)).index_copy(0, text[starts], rates.reshape(place.shape)[starts])
        states = self.model.encode(texts, target_rate=of_texts)[text, place]  # [n, T, D]
        return self.model.boundary_terms(states.view(*byte_ids.shape, -1), target_rate=rates)


def _check_places(place: Tensor, whole_rows: bool) -> None:
    """Require windows [n, T] that hold whole texts; values are looked at on the CPU only."""
    begins = place[:, 0] == 0
    follows = place[:, 1:] == place[:, :-1] + 1
    if not whole_rows:
        follows = follows | (place[:, 1:] == 0)
    if place.device.type != "cpu":
        torch._assert_async(begins.all() & follows.all())
        return
    if not bool(begins.all()):
        row = int((~begins).nonzero()[0])
        raise ValueError(
            f"windows must begin with the first byte of a text, got position {int(place[row, 0])} in row {row}; "
            f"LearnedBoundaryActor scores steps from anywhere by their stored encoder_state"
        )
    if not bool(follows.all()):
        row, step = (int(i) for i in (~follows).nonzero()[0])
        raise ValueError(
            f"windows must hold every byte of {'one' if whole_rows else 'a'} text in order, got position "
            f"{int(place[row, step + 1])} after {int(place[row, step])} in row {row}"
        )
