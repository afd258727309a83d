"""Train a new model on the boundaries of a finished one."""

from __future__ import annotations

from pathlib import Path

import torch
from rltok_rl.agents.segmenters import Segmenter, Segments, load_segmenter, read_byte, start_reading
from rltok_rl.agents.segmenters.rule_based import learned
from rltok_rl.agents.segmenters.segmenter import State
from torch import Tensor

from rltok_rl.models import UNet


class SavedBoundaries(Segmenter):
    """Draws the boundaries of a saved model's policy or segmenter, which stays as it is.

    The new model reads them from its first update. Its difference from the finished run estimates what it cost to learn
    these boundaries. FLOPs of the saved model are not counted.

    Args:
        model: the model that is trained.
        folder: the saved model: its folder, or that of its run. Write an absolute path if commands will be typed in
            another folder.
    """

    reads_states = False
    saved: UNet
    policy: Segmenter

    def __init__(self, model: UNet, folder: str) -> None:
        super().__init__()
        if not Path(folder).is_dir():
            raise ValueError(f"folder must be that of a saved model, or of a run, got {str(folder)!r}")
        with torch.device("cpu"):  # the new model may have no values yet
            saved = UNet.from_pretrained(folder).eval().requires_grad_(False)
            policy = load_segmenter(folder, saved) or learned(saved)
        if policy.looks_ahead:
            raise ValueError(f"folder must hold boundaries that depend on earlier bytes alone, got {str(folder)!r}")
        if saved.config.num_marks != model.config.num_marks:
            raise ValueError(
                f"folder must hold a model with begin_of_text={model.config.begin_of_text}, as the one that is "
                f"trained, got {str(folder)!r}"
            )
        # No submodules: they are neither trained nor saved with the model.
        self.__dict__["saved"], self.__dict__["policy"] = saved, policy.eval()
        self.target_rate = self.policy.target_rate

    @property
    def draws_at_random(self) -> bool:
        """Whether the saved policy's decisions are random."""
        return self.policy.draws_at_random

    @torch.no_grad()
    def _window(self, states: Tensor, byte_ids: Tensor, uniforms: Tensor | None) -> Segments:
        self._move(byte_ids.device)
        return Segments(self.policy(self.saved.encode(byte_ids), byte_ids, uniforms=uniforms).boundaries)

    def _start(self, num_rows: int, device: torch.device) -> State:
        self._move(device)
        return {"reader": start_reading(self.saved, self.policy, num_rows)}

    def _step(self, states: Tensor, byte_ids: Tensor, state: State, uniforms: Tensor | None) -> tuple[Segments, State]:
        reading = read_byte(self.saved, self.policy, state["reader"], byte_ids, uniforms=uniforms)
        return Segments(reading.segments.boundaries), {"reader": state["reader"]}

    def _move(self, device: torch.device) -> None:
        """Follow the texts to their device; a segmenter may have weights of its own."""
        self.saved.to(device)
        self.policy.to(device)
