"""The learned policy with its encoder, for scoring stored windows again."""

from __future__ import annotations

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
    """

    def __init__(self, model: UNet) -> None:
        reads = ["target_rate"] if model.config.rate_embedding else []
        super().__init__(_EncodingTerms(model), in_keys=["byte", "position", *reads])

    def forward(self, tensordict: TensorDictBase, **options: object) -> TensorDictBase:
        """Draw the boundaries of whole windows; only in recurrent mode, a single byte cannot be encoded."""
        if not recurrent_mode():
            raise RuntimeError(
                "EncodingBoundaryActor reads whole windows (torchrl.modules.set_recurrent_mode(True)); "
                "LearnedBoundaryActor decides byte by byte"
            )
        return super().forward(tensordict, **options)


class _EncodingTerms(Terms):
    def __init__(self, model: UNet) -> None:
        super().__init__()
        self.model = model

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
        starts = place == 0
        if not bool(starts[:, 0].all()):
            row = int((~starts[:, 0]).nonzero()[0])
            raise ValueError(
                f"windows must begin with the first byte of a text, got position {int(place[row, 0])} in row {row}; "
                f"LearnedBoundaryActor scores steps from anywhere by their stored encoder_state"
            )
        follows = starts[:, 1:] | (place[:, 1:] == place[:, :-1] + 1)
        if not bool(follows.all()):
            row, step = (int(i) for i in (~follows).nonzero()[0])
            raise ValueError(
                f"windows must hold every byte of a text in order, got position {int(place[row, step + 1])} after "
                f"{int(place[row, step])} in row {row}"
            )
        text = starts.flatten().long().cumsum(0).view_as(place) - 1  # [n, T] which text each byte belongs to
        texts = byte_ids.new_zeros(int(text[-1, -1]) + 1, int(place.max()) + 1)  # [texts, L]
        texts[text, place] = byte_ids.reshape(place.shape)
        of_texts = None  # [texts]
        if rates is not None:
            of_texts = rates.new_empty(len(texts)).index_copy(0, text[starts], rates.reshape(place.shape)[starts])
        states = self.model.encode(texts, target_rate=of_texts)[text, place]  # [n, T, D]
        return self.model.boundary_terms(states.view(*byte_ids.shape, -1), target_rate=rates)
