"""What every language with a known answer can say of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rltok_rl.data.windows import Places, Windows, WindowSource
from rltok_rl.utils import check_count

_BITS = 22  # of a place's number that say how many texts were drawn together


class Language(WindowSource, ABC):
    """An endless source of fresh text whose best boundaries, and what they are worth, are known.

    Three predictors frame what boundaries can be worth. The *ideal* one has read all of a text. The *floor* has read
    its last ``window`` bytes and does not know how many went before: it is the best early exit that there is. The
    return, in nats per byte, of a policy whose tokens carry everything is what lies between the two:

        optimal return = E[ log p_ideal(x_t | x_<t) - log p_floor(x_t | x_{t-w..t-1}) ]

    Entry t of every log-probability is that of byte t; entry 0 is that of the first byte, before anything was read.
    A rollout's ``("next", "final_log_prob")`` lines up with ``ideal_log_prob(byte_ids)[..., 1:]``. Texts are made and
    judged on the CPU.

    Args:
        window: w, bytes that the floor has read; ``visible_bytes`` says it of a model.
    """

    name: str
    """Short name, as in the gymnasium id."""

    def __init__(self, *, window: int) -> None:
        self.window = check_count("window", window)

    # What a language is.

    @property
    @abstractmethod
    def alphabet(self) -> bytes:
        """All bytes that occur, in order."""

    @abstractmethod
    def draw_ids(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Fresh texts, [num_rows, length] int64."""

    @abstractmethod
    def optimal_boundaries(self, byte_ids: Tensor) -> Tensor:
        """Where tokens should end: [*B, T] to bool [*B, T]; the first column is True, as in every text."""

    @abstractmethod
    def ideal_log_prob(self, byte_ids: Tensor) -> Tensor:
        """Log-probability of every byte given all before it, in nats; -inf from the first impossible byte on.

        Args:
            byte_ids: [*B, T] texts from their beginning.

        Returns:
            [*B, T] float64.
        """

    @abstractmethod
    def floor_log_prob(self, byte_ids: Tensor, *, window: int | None = None) -> Tensor:
        """Log-probability of every byte given only the ``window`` bytes before it, in nats.

        Args:
            byte_ids: [*B, T] texts of the language from their beginning.
            window: bytes that are read; None is the language's own.

        Returns:
            [*B, T] float64.
        """

    @property
    @abstractmethod
    def entropy_rate(self) -> float:
        """What a byte costs the ideal predictor on average, in nats."""

    @abstractmethod
    def floor_rate(self, *, window: int | None = None) -> float:
        """What a byte costs the floor on average, in nats."""

    @property
    @abstractmethod
    def boundary_rate(self) -> float:
        """Optimal boundaries per byte."""

    # What follows from it.

    @property
    def optimal_return_per_byte(self) -> float:
        """What tokens at the optimal boundaries are worth, in nats per byte of an endless text."""
        return self.floor_rate() - self.entropy_rate

    def share_captured(self, byte_ids: Tensor, log_prob: Tensor, *, window: int | None = None) -> float:
        """How far a predictor got from the floor (0) to the ideal (1), on these texts.

            sum_t (log p - log p_floor) / sum_t (log p_ideal - log p_floor)

        Args:
            byte_ids: [*B, T] texts from their beginning.
            log_prob: [*B, T - 1] what the predictor gave bytes 1 .. T - 1, in nats.
            window: bytes that the floor reads; None is the language's own.
        """
        if log_prob.shape != (*byte_ids.shape[:-1], byte_ids.shape[-1] - 1):
            raise ValueError(
                f"log_prob must have one entry for each byte but the first, "
                f"{[*byte_ids.shape[:-1], byte_ids.shape[-1] - 1]}, got {list(log_prob.shape)}"
            )
        byte_ids = byte_ids.cpu()
        floor = self.floor_log_prob(byte_ids, window=window)[..., 1:].sum()
        ideal = self.ideal_log_prob(byte_ids)[..., 1:].sum()
        return float((log_prob.detach().cpu().double().sum() - floor) / (ideal - floor))

    # What an environment asks of a source.

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Name fresh texts: which draw, of how many texts, and which of them; no text is met twice.

        Args:
            num_rows: how many.
            length: bytes of each, at least 2.
            generator: source of the random numbers.
        """
        draw = int(torch.randint(1 << 40, (), generator=generator)) << _BITS | num_rows
        return Places(torch.full((num_rows,), draw), torch.arange(num_rows))

    def read(self, places: Places, length: int) -> Windows:
        """Make the texts that were named; none ends within its window."""
        byte_ids = torch.zeros(len(places.document), length, dtype=torch.int64)
        for draw in places.document.unique().tolist():
            rows = (places.document == draw).nonzero().squeeze(1)
            texts = self.draw_ids(draw % (1 << _BITS), length, torch.Generator().manual_seed(draw))
            byte_ids[rows] = texts[places.offset[rows]]
        return Windows(byte_ids, *self.measure(places, length))

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """All windows are whole, and none ends its text, [n] both; no text is made."""
        num_rows = len(places.document)
        return torch.full((num_rows,), length), torch.zeros(num_rows, dtype=torch.bool)

    def check_length(self, length: int) -> None:
        """Refuse a window without a byte to predict."""
        if length < 2:
            raise ValueError(f"length must be at least 2 (one byte to read, one to predict), got {length}")

    def _window(self, window: int | None) -> int:
        return self.window if window is None else check_count("window", window)


def visible_bytes(layer_window: int, num_layers: int) -> int:
    """Bytes that reach the top of a stack of sliding-window layers, the current one included.

        1 + num_layers (layer_window - 1)

    With the encoder's layers it is what an early exit sees; with the encoder's and the decoder's, what the whole model
    sees beside its tokens. Values that must travel through tokens lie further back than the latter.

    Args:
        layer_window: bytes that one layer sees.
        num_layers: layers on top of each other.

    Example:
        >>> visible_bytes(8, num_layers=1), visible_bytes(8, num_layers=2)
        (8, 15)
    """
    if layer_window < 1 or num_layers < 0:
        raise ValueError(
            f"layer_window must be at least 1 and num_layers at least 0, got {layer_window} and {num_layers}"
        )
    return 1 + num_layers * (layer_window - 1)


def check_alphabets(**alphabets: str) -> None:
    """Require named sets of printable ASCII characters that share none."""
    owner: dict[str, str] = {}
    for name, characters in alphabets.items():
        for character in characters:
            if not "!" <= character <= "~":
                raise ValueError(f"{name} must be printable ASCII without spaces, got {character!r} in {characters!r}")
            if character in owner:
                also = owner[character]
                raise ValueError(f"{name} must have characters of its own, got {character!r}, also in {also}")
            owner[character] = name
