"""What a second level has to remember between two tokens.

Shapes: B rows, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rltok_rl.models.pooling import TokenLayout

if TYPE_CHECKING:
    from rltok_rl.models.cache import TokenCache


@dataclass
class SecondCache:
    """Keys and values of all tokens of tokens, and what the next token needs of those before it."""

    tokens: TokenCache
    query: Tensor  # [B, D] what routing compares the next token with
    update: Tensor  # [B, D] what the current token of tokens adds to its tokens

    def finish_window(self, query: Tensor, updates: Tensor, layout: TokenLayout) -> None:
        """Take over what a whole window leaves behind, beside the keys and values that were recorded.

        Args:
            query: [B, D] of each row's last token.
            updates: [B, Q, D] what each token of tokens adds to its tokens.
            layout: where tokens of tokens sit among the tokens; padding of a row belongs to its last one.
        """
        self.query = query.to(self.query.dtype)
        self.update = updates.flatten(0, 1).index_select(0, layout.token_index[:, -1]).to(self.update.dtype)
        self.tokens.count = layout.num_tokens.clone()

    def reset(self, rows: Tensor) -> None:
        """Forget some rows, [B] bool."""
        for state in (self.query, self.update, self.tokens.count):
            state[rows] = 0

    def map(self, on_rows: Callable[[Tensor], Tensor], on_tokens: Callable[[TokenCache], TokenCache]) -> SecondCache:
        """Apply functions to everything in it."""
        return SecondCache(on_tokens(self.tokens), on_rows(self.query), on_rows(self.update))
