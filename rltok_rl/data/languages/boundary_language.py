"""Base class of languages with a known answer."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rltok_rl.data.windows import Places, Windows, WindowSource
from rltok_rl.utils import check_count

_BITS = 22  # of a place's number that hold the number of texts drawn together


class Language(WindowSource, ABC):
    """Endless fresh text with known optimal boundaries and a known optimal return.

    The *ideal* predictor has read the whole text. The *floor* has read its last ``window`` bytes and does not know how
    many came before: no early exit is better. A policy whose tokens carry everything earns, in nats per byte,

        optimal return = E[ log p_ideal(x_t | x_<t) - log p_floor(x_t | x_{t-w..t-1}) ]

    ``visible_bytes`` computes a model's window w. Entry t of a log-probability is that of byte t, given the bytes
    before it: a rollout's ``("next", "final_log_prob")`` lines up with ``ideal_log_prob(byte_ids)[..., 1:]``.
    Everything runs on the CPU.
    """

    name: str
    """Short name, as in the gymnasium id."""

    def __init__(self, *, window: int) -> None:
        self.window = check_count("window", window)

    @property
    @abstractmethod
    def alphabet(self) -> bytes:
        """All bytes that occur, in order."""

    @abstractmethod
    def draw_ids(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw fresh texts, [num_rows, length] int64."""

    @abstractmethod
    def optimal_boundaries(self, byte_ids: Tensor) -> Tensor:
        """Return where tokens should end, [*B, T] bool; the first column is True."""

    @abstractmethod
    def ideal_log_prob(self, byte_ids: Tensor) -> Tensor:
        """Return log p_ideal of whole texts, [*B, T] float64 in nats; -inf from the first impossible byte on."""

    @abstractmethod
    def floor_log_prob(self, byte_ids: Tensor, *, window: int | None = None) -> Tensor:
        """Return log p_floor of whole texts, [*B, T] float64 in nats; ``window`` replaces the language's own."""

    @property
    @abstractmethod
    def entropy_rate(self) -> float:
        """Mean cost of a byte to the ideal predictor, in nats."""

    @abstractmethod
    def floor_rate(self, *, window: int | None = None) -> float:
        """Return the mean cost of a byte to the floor, in nats."""

    @property
    @abstractmethod
    def boundary_rate(self) -> float:
        """Optimal boundaries per byte."""

    @property
    def optimal_return_per_byte(self) -> float:
        """Return of the optimal boundaries, ``floor_rate() - entropy_rate``, in nats per byte of an endless text."""
        return self.floor_rate() - self.entropy_rate

    def share_captured(self, byte_ids: Tensor, log_prob: Tensor) -> float:
        """Return how far a predictor got from the floor (0) to the ideal (1) on texts [*B, T].

            sum_t (log p - log p_floor) / sum_t (log p_ideal - log p_floor)

        ``log_prob`` [*B, T - 1] holds the predictor's log p of bytes 1 .. T - 1, in nats.
        """
        gained, most = self.share_sums(byte_ids, log_prob).unbind(-1)
        return float(gained.sum() / most.sum())

    def share_sums(self, byte_ids: Tensor, log_prob: Tensor) -> Tensor:
        """Return both sums of :meth:`share_captured` for each text, [*B, 2] float64."""
        expected = [*byte_ids.shape[:-1], byte_ids.shape[-1] - 1]
        if [*log_prob.shape] != expected:
            raise ValueError(f"log_prob must have shape {expected}, without first bytes, got {list(log_prob.shape)}")
        byte_ids = byte_ids.cpu()
        floor = self.floor_log_prob(byte_ids)[..., 1:].sum(-1)
        ideal = self.ideal_log_prob(byte_ids)[..., 1:].sum(-1)
        return torch.stack((log_prob.detach().cpu().double().sum(-1) - floor, ideal - floor), -1)

    def pick(self, num_rows: int, length: int, generator: torch.Generator | None = None) -> Places:
        """Choose fresh texts: the number of a draw, and the rows of its texts."""
        draw = int(torch.randint(1 << 40, (), generator=generator)) << _BITS | num_rows
        return Places(torch.full((num_rows,), draw), torch.arange(num_rows))

    def read(self, places: Places, length: int) -> Windows:
        """Write the chosen texts."""
        byte_ids = torch.zeros(len(places.document), length, dtype=torch.int64)
        for draw in places.document.unique().tolist():
            rows = (places.document == draw).nonzero().squeeze(1)
            texts = self.draw_ids(draw % (1 << _BITS), length, torch.Generator().manual_seed(draw))
            byte_ids[rows] = texts[places.offset[rows]]
        return Windows(byte_ids, *self.measure(places, length))

    def measure(self, places: Places, length: int) -> tuple[Tensor, Tensor]:
        """Return whole windows [n] that never end their texts [n]."""
        num_rows = len(places.document)
        return torch.full((num_rows,), length), torch.zeros(num_rows, dtype=torch.bool)

    def _window(self, window: int | None) -> int:
        return self.window if window is None else check_count("window", window)


def visible_bytes(layer_window: int, num_layers: int) -> int:
    """Return how many bytes, the current one included, reach the top of sliding-window layers.

        1 + num_layers (layer_window - 1)

    The encoder's layers make up the early exit's window. Encoder and decoder layers together make up what the whole
    model sees without tokens: values that must travel through tokens lie further back.

    Example:
        >>> visible_bytes(8, num_layers=1), visible_bytes(8, num_layers=2)
        (8, 15)
    """
    if layer_window < 1 or num_layers < 0:
        raise ValueError(f"layer_window must be at least 1 and num_layers at least 0, got {layer_window}, {num_layers}")
    return 1 + num_layers * (layer_window - 1)


def check_alphabets(**alphabets: str) -> None:
    """Require named sets of printable ASCII characters that are disjoint."""
    owner: dict[str, str] = {}
    for name, characters in alphabets.items():
        for character in characters:
            if not "!" <= character <= "~":
                raise ValueError(f"{name} must be printable ASCII without spaces, got {character!r} in {characters!r}")
            if character in owner:
                raise ValueError(f"{name} must not share characters, got {character!r}, also in {owner[character]}")
            owner[character] = name


def find_pieces(lengths: Tensor, num_bytes: int) -> tuple[Tensor, Tensor]:
    """Return which piece each byte of a text is in, and the bytes since the piece began, [n, num_bytes] both.

    Pieces of ``lengths`` [n, pieces] follow each other and fill the text.
    """
    ends = lengths.cumsum(1)
    place = torch.arange(num_bytes).expand(len(lengths), -1).contiguous()
    piece = torch.searchsorted(ends, place, right=True)
    return piece, place - (ends - lengths).gather(1, piece)


def log_until_impossible(prob: Tensor) -> Tensor:
    """Return log-probabilities [*B, T] that stay -inf after the first impossible byte."""
    return prob.masked_fill((prob == 0).cummax(-1).values, 0).log()
