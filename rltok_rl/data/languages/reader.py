"""The perfect reader of tokens: exact next-byte probabilities, given the bytes at boundaries and the last few."""

from __future__ import annotations

import torch
from torch import Tensor

from rltok_rl.data.languages.automaton import Automaton


class PerfectReader:
    """Reads texts of an automaton and forgets each byte that no boundary keeps.

    It sees the last ``language.window`` bytes, and keeps the last ``window`` at each boundary. It always knows where in
    the text it is (``place``: the node of a grammar), but not which bytes were there. All else is Bayes' rule:

        p(x_t+1 | bytes kept, last ``window`` bytes, places up to t)

    Boundaries themselves tell it nothing, so no policy can pass messages by drawing them.

    Args:
        language: the automaton.
        num_rows: texts that are read at the same time.

    Example:
        >>> from rltok_rl.data.languages import TASKS
        >>> language = TASKS["delay"].language()
        >>> byte_ids = language.draw(2, 60, torch.Generator().manual_seed(0)).byte_ids
        >>> best = language.optimal_boundaries(byte_ids)
        >>> gain = read_texts(language, byte_ids, best) - read_texts(language, byte_ids, torch.zeros_like(best))
        >>> [round(text, 2) for text in gain.sum(1).tolist()]  # ln 8 a value
        [10.4, 10.4]
    """

    def __init__(self, language: Automaton, num_rows: int) -> None:
        self.language = language
        num_states = len(language._chance)
        self._flow = torch.zeros(num_states, num_states, dtype=torch.float64)
        self._flow.scatter_add_(1, language._next, language._chance)  # [from, to]
        # Entry j: probability of each state after reading the last j bytes, kept or not, [B, w + 1, S].
        self.beliefs = torch.zeros(num_rows, language.window + 1, num_states, dtype=torch.float64)
        self.beliefs[..., 0] = 1.0

    def keep(self, boundaries: Tensor) -> None:
        """Keep the last bytes in rows with a boundary, [B] bool."""
        self.beliefs = torch.where(boundaries[:, None, None], self.beliefs[:, -1:], self.beliefs)

    def read(self, symbols: Tensor, states: Tensor) -> Tensor:
        """Read the next symbol of each row [B], which leads to a state [B]; return its log-probability [B]."""
        language = self.language
        seen = language._filter(self.beliefs[:, :-1].flatten(0, 1), symbols.repeat_interleave(language.window))
        present = (self.beliefs[:, -1] * language._columns(language._chance, symbols)).sum(1)
        unseen = self.beliefs[:, 0] @ self._flow * (language._place == language._place[states][:, None])
        joint = torch.cat((unseen[:, None], seen.view(len(symbols), language.window, -1)), 1)
        self.beliefs = joint / joint.sum(-1, keepdim=True)
        return present.log()


def read_texts(language: Automaton, byte_ids: Tensor, boundaries: Tensor) -> Tensor:
    """Return log p of bytes 1 .. T of texts [B, T + 1] to the :class:`PerfectReader`, [B, T] float64 in nats.

    Entry t of ``boundaries`` [B, T + 1] bool is a boundary after byte t, which may help from byte t + 1 on.
    """
    symbols, reader = language._symbols(byte_ids), PerfectReader(language, len(byte_ids))
    states, _ = language._follow(symbols)
    log_prob = [reader.read(symbols[:, 0], states[:, 1])]
    for t in range(1, byte_ids.shape[1]):
        reader.keep(boundaries[:, t - 1])
        log_prob.append(reader.read(symbols[:, t], states[:, t + 1]))
    return torch.stack(log_prob[1:], 1)
