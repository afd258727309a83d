"""Two processes with some of the rows each train as one process with all of them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rltok_rl.agents import LearnedBoundaryActor

from rltok_rl.objectives import BoundaryClipPPOLoss, EntropyBonus, JointLoss, RateLoss, SecondLevelLoss

from ..forked import CONTEXT
from .conftest import make_model, make_rollout


def gradients(rows: slice, group) -> dict[str, torch.Tensor]:
    """Gradients of a joint loss and of PPO with respect to the model, and the figures, on some of the rows."""
    torch.manual_seed(0)
    model = make_model()
    rollout = make_rollout(model, num_rows=6)[rows]
    valid = torch.ones(6, 12, dtype=torch.bool)
    valid[1, 5:] = False  # ranks with different numbers of real steps
    valid[4, 9:] = False
    rollout["collector", "mask"] = valid[rows]
    joint = JointLoss.paper(target_rate=0.3, baseline="leave_one_out", gamma=0.9, process_group=group)
    joint = JointLoss({**joint.terms, "bonus": EntropyBonus(process_group=group)})
    ppo = BoundaryClipPPOLoss(
        LearnedBoundaryActor(model), entropy_coeff=0.1, normalize_advantage=True, process_group=group
    )
    ppo.make_value_estimator("discounted_return", gamma=0.9, baseline="leave_one_out")
    stored = rollout.detach()
    shift = 0.3 * torch.randn(6, 12, generator=torch.Generator().manual_seed(4))
    stored["action_log_prob"] = stored["action_log_prob"] + shift[rows]
    # Targets of several texts: one that both processes know, and of each one that the other does not.
    rates = torch.tensor([0.2, 0.2, 0.5, 0.5, 0.2, 0.1])
    rated = rollout.clone().set("target_rate", rates[rows, None, None].expand(-1, 12, 1).clone())
    alone = JointLoss({"rate": RateLoss(0.3, process_group=group)})
    second = JointLoss({"second_level": SecondLevelLoss(0.3, process_group=group)})
    routed = rollout.clone()
    routed["next", "second_probability"] = rollout["logits"].sigmoid()
    routed["next", "second_boundary"] = rollout["action"].bool() & (rollout["position"].squeeze(-1) % 3 > 0)
    found: dict[str, torch.Tensor] = {}
    cases = {"joint": (joint, rollout), "rates": (alone, rated), "second": (second, routed), "ppo": (ppo, stored)}
    for name, (loss, given) in cases.items():
        out = loss(given)
        total = sum(value for key, value in out.items() if key.startswith("loss_"))
        grads = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True, retain_graph=True)
        found |= {f"{name} {n}": g for (n, _), g in zip(model.named_parameters(), grads, strict=True)}
        found |= {f"{name} figure {k}": v.detach() for k, v in out.items() if not k.startswith("loss_")}
    return found


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    rows = slice(0, 4) if rank == 0 else slice(4, None)
    torch.save(gradients(rows, dist.group.WORLD), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_are_one(tmp_path: Path):
    mp.start_processes(work, (str(tmp_path),), 2, start_method=CONTEXT.get_start_method())
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, value in gradients(slice(None), None).items():
        if " figure " in name:  # the same everywhere
            torch.testing.assert_close(first[name], second[name], msg=lambda m, n=name: f"{n}: {m}")
        average = (first[name] + second[name]) / 2  # what data-parallel training does with gradients
        torch.testing.assert_close(average, value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
