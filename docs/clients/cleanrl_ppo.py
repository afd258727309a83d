"""PPO in one file, in the manner of CleanRL, over the batched gymnasium environment: a file to copy and to change.

    python docs/clients/cleanrl_ppo.py --price 0.05         # where should the packaged model's tokens end, at a price?
    python docs/clients/cleanrl_ppo.py --env-id rltok_rl/Recall-v1 --episode-steps 128 --num-steps 128

The language model is the world and stays as it is; a small network of this file's own learns where boundaries go. Every
update adds a line to ``progress.csv``. Nothing of rltok_rl is used but the environment and the model in it.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from rltok_rl import UNet


@dataclass
class Args:
    """Options, all of the command line too."""

    env_id: str = "rltok_rl/ByteBoundary-v1"
    model: str = ""  # the world: a folder, a run, a hub id, or a packaged name; empty is the environment's own
    price: float = float("nan")  # nats that a boundary costs; nan is the environment's own
    out: str = "runs/cleanrl_ppo"
    seed: int = 0
    num_envs: int = 32
    episode_steps: int = 64  # decisions per text
    num_steps: int = 64  # decisions per text and update
    total_steps: int = 150_000
    learning_rate: float = 1e-3
    anneal_lr: bool = True
    gamma: float = 0.95
    gae_lambda: float = 0.95
    num_minibatches: int = 4
    update_epochs: int = 4
    norm_adv: bool = True
    clip_coef: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden: int = 64


class Agent(nn.Module):
    """Policy and value, two networks over what is observed of a text.

    Args:
        space: of one text's observation.
        hidden: width of the hidden layers.
    """

    def __init__(self, space: gymnasium.spaces.Dict, hidden: int) -> None:
        super().__init__()
        width, num_lags = space["encoder_state"].shape[0], space["recent"].n
        self.norm = nn.LayerNorm(width)
        self.actor = self._network(width + num_lags, hidden, 2, scale=0.01)
        self.critic = self._network(width + num_lags, hidden, 1, scale=1.0)

    @staticmethod
    def _network(num_inputs: int, hidden: int, num_outputs: int, scale: float) -> nn.Sequential:
        sizes = ((num_inputs, hidden, 2**0.5), (hidden, hidden, 2**0.5), (hidden, num_outputs, scale))
        layers: list[nn.Module] = []
        for inputs, outputs, gain in sizes:
            layer = nn.Linear(inputs, outputs)
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
            layers += [layer, nn.Tanh()]
        return nn.Sequential(*layers[:-1])

    def forward(self, states: Tensor, recent: Tensor) -> tuple[Categorical, Tensor]:
        """Decisions and values [*B] from encoder states [*B, D] and the last boundaries [*B, w]."""
        seen = torch.cat((self.norm(states), recent), -1)
        return Categorical(logits=self.actor(seen)), self.critic(seen).squeeze(-1)


def tensors(observation: dict[str, np.ndarray]) -> tuple[Tensor, Tensor]:
    """What the agent reads of an observation: encoder states [N, D], the last boundaries [N, w]."""
    return torch.as_tensor(observation["encoder_state"]), torch.as_tensor(observation["recent"]).float()


def advantages(rewards: Tensor, values: Tensor, next_values: Tensor, ended: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantages, A_t = delta_t + gamma lam (1 - ended_t) A_{t+1}, [T, N].

    delta_t = r_t + gamma v'_t - v_t, where v'_t values what follows decision t: 0 where the document is over, the last
    observation of a text that was cut (it would have gone on), the next observation elsewhere.
    """
    advantages, later = torch.zeros_like(rewards), torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_values[t] - values[t]
        advantages[t] = later = delta + gamma * lam * torch.where(ended[t], 0.0, later)
    return advantages


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """1 - var(returns - values) / var(returns): 1 for a critic that knows, 0 for one that says the same always."""
    return float(1 - (returns - values).var() / returns.var())


def make_env(args: Args) -> gymnasium.vector.VectorEnv:
    """All texts in one batched step; texts that end start anew at once, their last observation in ``info``."""
    world: dict = {"model": UNet.from_pretrained(args.model)} if args.model else {}
    world |= {"price": args.price} if args.price == args.price else {}  # nan differs from itself
    return gymnasium.make_vec(
        args.env_id,
        num_envs=args.num_envs,
        **world,
        num_steps=args.episode_steps,
        autoreset_mode="SameStep",
    )


def train(
    args: Args,
    env: gymnasium.vector.VectorEnv,
    tell: Callable[[dict], None] = lambda row: None,
    agent: Agent | None = None,
) -> list[dict]:
    """Train an agent; one line of figures per update, told as it comes and returned.

    Args:
        args: options.
        env: vector environment that resets in the same step.
        tell: called with every line.
        agent: the agent to train, which ``tell`` may evaluate; None is a new one.
    """
    torch.manual_seed(args.seed)
    agent = agent or Agent(env.single_observation_space, args.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shape = args.num_steps, args.num_envs
    num_updates = args.total_steps // (args.num_steps * args.num_envs)
    rows, start = [], time.perf_counter()
    observation, _ = env.reset(seed=args.seed)
    totals = np.zeros(args.num_envs)
    for update in range(1, num_updates + 1):
        if args.anneal_lr:
            optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - (update - 1) / num_updates)

        # Read texts and decide.
        seen: list[tuple[Tensor, Tensor]] = []
        actions = torch.zeros(shape, dtype=torch.int64)
        ended = torch.zeros(shape, dtype=torch.bool)
        log_probs, values, final_values, rewards = (torch.zeros(shape) for _ in range(4))
        episode_returns, episode_bits = [], []
        for t in range(args.num_steps):
            seen.append(tensors(observation))
            with torch.no_grad():
                decisions, values[t] = agent(*seen[-1])
            actions[t] = decisions.sample()
            log_probs[t] = decisions.log_prob(actions[t])
            observation, reward, terminated, truncated, info = env.step(actions[t].numpy())
            over = terminated | truncated
            rewards[t], ended[t] = torch.as_tensor(reward), torch.as_tensor(over)
            totals += reward
            for n in np.flatnonzero(over):  # the observation of row n is of another text already
                last = info["final_obs"][n]
                if not terminated[n]:  # cut: what would have followed has a value; after the end of a document nothing
                    with torch.no_grad():
                        final_values[t, n] = agent(*tensors(last))[1]
                episode_returns.append(totals[n])
                episode_bits.append(info["final_info"]["bits"][n] / last["position"].item())
                totals[n] = 0.0

        # Learn from them.
        with torch.no_grad():
            following = torch.cat((values[1:], agent(*tensors(observation))[1][None]))
        next_values = torch.where(ended, final_values, following)
        gained = advantages(rewards, values, next_values, ended, args.gamma, args.gae_lambda)
        returns = gained + values
        batch = {
            "states": torch.stack([states for states, _ in seen]).flatten(0, 1),
            "recent": torch.stack([recent for _, recent in seen]).flatten(0, 1),
            **{name: value.flatten() for name, value in (("actions", actions), ("log_probs", log_probs))},
            **{name: value.flatten() for name, value in (("advantages", gained), ("returns", returns))},
        }
        figures: list[tuple[float, ...]] = []
        for _ in range(args.update_epochs):
            for picked in torch.randperm(returns.numel()).chunk(args.num_minibatches):
                some = {name: value[picked] for name, value in batch.items()}
                decisions, new_values = agent(some["states"], some["recent"])
                log_ratio = decisions.log_prob(some["actions"]) - some["log_probs"]
                ratio, advantage = log_ratio.exp(), some["advantages"]
                if args.norm_adv:
                    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
                loss_policy = -torch.minimum(advantage * ratio, advantage * clipped).mean()
                loss_value = 0.5 * (new_values - some["returns"]).square().mean()
                entropy = decisions.entropy().mean()
                optimizer.zero_grad()
                (loss_policy + args.vf_coef * loss_value - args.ent_coef * entropy).backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
                kl = (ratio - 1 - log_ratio).mean()
                outside = ((ratio - 1).abs() > args.clip_coef).float().mean()
                figures.append(tuple(float(f.detach()) for f in (loss_policy, loss_value, entropy, kl, outside)))

        steps = update * returns.numel()
        names = ("loss_policy", "loss_value", "entropy", "approx_kl", "clip_fraction")
        row = {
            "update": update,
            "steps": steps,
            "return": float(np.mean(episode_returns)) if episode_returns else float("nan"),
            "reward": float(rewards.mean()),
            "bits_per_byte": float(np.mean(episode_bits)) if episode_bits else float("nan"),
            "rate": float(actions.float().mean()),
            "explained_variance": explained_variance(values, returns),
            **dict(zip(names, np.mean(figures, 0).tolist(), strict=True)),
            "learning_rate": optimizer.param_groups[0]["lr"],
            "SPS": steps / (time.perf_counter() - start),
        }
        rows.append(row)
        tell(row)
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in fields(Args):
        name, kind = f"--{option.name.replace('_', '-')}", type(option.default)
        kwargs = {"action": argparse.BooleanOptionalAction} if kind is bool else {"type": kind}
        parser.add_argument(name, default=option.default, help=f"default: {option.default}", **kwargs)
    args = Args(**vars(parser.parse_args(arguments)))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "args.txt").write_text("".join(f"{name}={value}\n" for name, value in asdict(args).items()))
    with (out / "progress.csv").open("w", newline="") as file:
        writer = csv.writer(file)

        def tell(row: dict) -> None:
            if row["update"] == 1:
                writer.writerow(row)
            writer.writerow(row.values())
            file.flush()
            shown = ", ".join(f"{name} {row[name]:.3f}" for name in ("return", "bits_per_byte", "rate", "entropy"))
            print(f"{row['steps']:>9,} steps: {shown}, {row['SPS']:.0f} steps/s", flush=True)

        train(args, make_env(args), tell)


if __name__ == "__main__":
    main()
