"""Learn where tokens end with REINFORCE: the whole method in one file, to be read from top to bottom.

A byte-level language model reads text and decides after every byte whether a token ends there. Token layers run at the
bytes that end a token and give their results to the bytes that follow. The reward of a decision is the log-likelihood
that the following bytes gain over an early exit, which predicts them without tokens.

    python experiments/reinforce.py [FILE]      # trains on a file, or on a small text that it makes itself
    python experiments/reinforce.py --help      # every hyperparameter is an option

"Eq. 12" is equation 12 of https://arxiv.org/abs/2602.13940. Indices start at 0: position t has read bytes 0 to t,
draws boundary a_t, and predicts byte t + 1. Shapes: B rows, T bytes, S tokens of the longest row, D width, H heads,
C channels of a head, w lags. Parameters have the names of rltok_rl's UNet, so that each loads the other's weights.
"""

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Config:
    """Hyperparameters, small enough for a minute on a CPU; comments have the values of the paper's 147M model."""

    width: int = 64  # D; 768
    num_heads: int = 2  # H; 12
    num_encoder_layers: int = 1  # byte layers below the tokens; 4
    num_token_layers: int = 1  # 12
    num_decoder_layers: int = 1  # byte layers above the tokens; 4
    window: int = 6  # bytes that a byte layer sees, the current one included; 64
    byte_mlp_ratio: int = 1  # hidden channels of a byte layer's MLP, in units of D
    token_mlp_ratio: int = 4
    attention_cap: float = 0.0  # soft caps, 0 for none: of attention scores (Gemma 2: 50),
    final_cap: float = 30.0  # of next-byte logits (Gemma 2: 30),
    boundary_cap: float = 6.0  # and of boundary logits, in training
    encoder_norm: int = 1  # RMSNorm of X before policy and early exit; 0
    num_lags: int = 8  # w, earlier boundaries that the policy sees
    boundary_scale: float = 0.5  # 1/D of Eq. 22, where D is not the width; 1/16
    target_rate: float = 0.2  # boundaries per byte
    rope_base: float = 10_000.0
    norm_eps: float = 1e-6
    gamma: float = 0.9  # discount of Eq. 16; 0.99
    policy_weight: float = 0.01  # the three lambdas of Eq. 27
    rate_weight: float = 0.01
    early_weight: float = 0.1
    num_rows: int = 16  # B; 128
    num_bytes: int = 64  # T; 4096
    num_updates: int = 800
    warm_up: int = 40  # updates
    lr: float = 3e-3  # 1.5e-3
    lr_floor: float = 0.1  # share of lr that is left at the end
    beta2: float = 0.999
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    seed: int = 0


# 1. The model: bytes, byte layers, token layers, byte layers, next bytes (Section 2.2).
def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """Squash into (-cap, cap), with slope 1 at 0."""
    return cap * torch.tanh(x / cap) if cap else x


def rotate(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Turn the channel pairs (i, i + C/2) of x [B, H, L, C] by angles that grow with the positions [B, L]."""
    half = x.shape[-1] // 2
    frequencies = base ** -(torch.arange(half, device=x.device) / half)  # [C/2]
    angles = positions[:, None, :, None] * frequencies  # [B, 1, L, C/2]
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


class RMSNorm(nn.Module):
    """Divide by the root mean square, then scale by 1 + weight, as in Gemma 2."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eps, self.weight = config.norm_eps, nn.Parameter(torch.zeros(config.width))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to [B, L, D]."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class Attention(nn.Module):
    """Self-attention with rotary positions and a mask."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads, self.base, self.cap = config.num_heads, config.rope_base, config.attention_cap
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """[B, L, D] at positions [B, L] to [B, L, D]; mask [L, L] is True where a query may look."""
        heads = self.query_key_value(x).unflatten(-1, (3, self.num_heads, -1))  # [B, L, 3, H, C]
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # [B, H, L, C] each
        query, key = rotate(query, positions, self.base), rotate(key, positions, self.base)
        scores = soft_cap(query @ key.mT / query.shape[-1] ** 0.5, self.cap)  # [B, H, L, L]
        mixed = scores.masked_fill(~mask, -math.inf).softmax(-1) @ value  # [B, H, L, C]
        return self.out(mixed.transpose(1, 2).flatten(-2))


class GeGLU(nn.Module):
    """The MLP of Gemma 2: one half of the hidden channels gates the other."""

    def __init__(self, config: Config, mlp_ratio: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.width, 2 * mlp_ratio * config.width, bias=False)
        self.down = nn.Linear(mlp_ratio * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to [B, L, D]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.gelu(gate, approximate="tanh") * up)


class TransformerLayer(nn.Module):
    """Attention and MLP, each between two norms (Appendix D)."""

    def __init__(self, config: Config, mlp_ratio: int) -> None:
        super().__init__()
        self.attention_norm, self.attention_out_norm = RMSNorm(config), RMSNorm(config)
        self.mlp_norm, self.mlp_out_norm = RMSNorm(config), RMSNorm(config)
        self.attention, self.mlp = Attention(config), GeGLU(config, mlp_ratio)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """[B, L, D] to [B, L, D], arguments as for attention."""
        x = x + self.attention_out_norm(self.attention(self.attention_norm(x), positions, mask))
        return x + self.mlp_out_norm(self.mlp(self.mlp_norm(x)))


def run_layers(layers: nn.ModuleList, x: Tensor, positions: Tensor, window: int) -> Tensor:
    """Causal layers that see the last `window` places, the current one included: [B, L, D] to [B, L, D]."""
    places = torch.arange(x.shape[1], device=x.device)
    distance = places[:, None] - places  # [L, L]
    for layer in layers:
        x = layer(x, positions, (distance >= 0) & (distance < window))
    return x


class UNet(nn.Module):
    """The autoregressive U-Net, its early exit and its boundary policy."""

    def __init__(self, config: Config) -> None:
        super().__init__()

        def stack(num_layers: int, mlp_ratio: int) -> nn.ModuleList:
            return nn.ModuleList(TransformerLayer(config, mlp_ratio) for _ in range(num_layers))

        def head(num_logits: int) -> nn.ModuleDict:
            return nn.ModuleDict({"projection": nn.Linear(config.width, num_logits, bias=False)})

        self.config = config
        self.embedding = nn.Embedding(256, config.width)
        self.encoder = stack(config.num_encoder_layers, config.byte_mlp_ratio)
        self.token_layers = stack(config.num_token_layers, config.token_mlp_ratio)
        self.decoder = stack(config.num_decoder_layers, config.byte_mlp_ratio)
        self.encoder_norm = RMSNorm(config) if config.encoder_norm else nn.Identity()
        self.decoder_norm = RMSNorm(config)
        self.boundary_head = head(1 + config.num_lags)  # W_0 .. W_w of Eq. 21
        self.early_head, self.final_head = head(256), head(256)  # W_early of Eq. 14, and that of decode
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)
        nn.init.normal_(self.final_head.get_parameter("projection.weight"), std=0.02)  # almost uniform predictions
        self.early_head.load_state_dict(self.final_head.state_dict())  # Section 2.4

    def run_bytes(self, layers: nn.ModuleList, x: Tensor) -> Tensor:
        """Byte layers, with a sliding window: [B, T, D] to [B, T, D]."""
        return run_layers(layers, x, torch.arange(x.shape[1], device=x.device)[None], self.config.window)

    def encode(self, byte_ids: Tensor) -> Tensor:
        """Byte states X (Eq. 1): [B, T] to [B, T, D]."""
        return self.run_bytes(self.encoder, self.embedding(byte_ids) * self.config.width**0.5)

    def early_log_probs(self, states: Tensor) -> Tensor:
        """Next-byte predictions from X_t alone (Eq. 14): [B, T, D] to [B, T, 256]."""
        logits = self.early_head["projection"](self.encoder_norm(states))
        return soft_cap(logits, self.config.final_cap).log_softmax(-1)

    def boundary_logit(self, terms: Tensor, recent: Tensor) -> Tensor:
        """Boundary logits l_t [B] from terms W_j X_t [B, 1 + w] and recent boundaries a_{t-1} .. a_{t-w} [B, w]."""
        raw = terms[:, 0] + (terms[:, 1:] * recent).sum(-1)  # Eq. 21
        rate = self.config.target_rate
        scaled = raw * self.config.boundary_scale + math.log(rate / (1 - rate))  # Eq. 22
        return soft_cap(scaled, self.config.boundary_cap) if self.training else scaled  # Eq. 23

    def log_probs(self, states: Tensor, boundaries: Tensor) -> Tensor:
        """Next-byte predictions through the tokens (Eq. 3 to 6): [B, T, D] and [B, T] to [B, T, 256]."""
        rows = torch.arange(len(states), device=states.device)[:, None]  # [B, 1]
        longest = int(boundaries.sum(1).max())  # S
        # Bytes with a boundary, in order. Other bytes pad rows with fewer tokens at the end, where no token looks.
        positions = boundaries.int().argsort(dim=1, descending=True, stable=True)[:, :longest]  # [B, S]
        tokens = states[rows, positions]  # [B, S, D], X' (Eq. 3, 7, 8)
        tokens = run_layers(self.token_layers, tokens, positions, window=longest)  # [B, S, D], Y' (Eq. 4)
        token_of_byte = boundaries.cumsum(1) - 1  # [B, T]
        mixed = states + tokens[rows, token_of_byte]  # [B, T, D], Y (Eq. 5, 9)
        logits = self.final_head["projection"](self.decoder_norm(self.run_bytes(self.decoder, mixed)))
        return soft_cap(logits, self.config.final_cap).log_softmax(-1)  # Eq. 6


# 2. The sampler: byte by byte, because a boundary depends on those before it (Section 2.5).
def draw_boundaries(model: UNet, states: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draw a ~ pi (Eq. 2) with random numbers [B, T] from states [B, T, D]: boundaries and logits, [B, T] each."""
    terms = model.boundary_head["projection"](model.encoder_norm(states))  # [B, T, 1 + w]
    recent = terms.new_zeros(len(terms), model.config.num_lags)  # [B, w], newest first
    boundaries, logits = [], []
    for t in range(terms.shape[1]):
        logit = model.boundary_logit(terms[:, t], recent)  # [B]
        drawn = (uniforms[:, t] < logit.detach().sigmoid()) | (t == 0)  # [B], Eq. 19, 20; a text begins with a token
        recent = torch.cat((drawn[:, None].to(recent), recent), 1)[:, : model.config.num_lags]
        boundaries.append(drawn)
        logits.append(logit)
    return torch.stack(boundaries, 1), torch.stack(logits, 1)


# 3. Reinforcement learning: what a boundary is worth, and the losses (Sections 2.3, 2.4, 2.6, 2.7).
def reward(final: Tensor, early: Tensor) -> Tensor:
    """Nats that the tokens gain on each next byte (Eq. 15); a reward has no gradient: [B, T] to [B, T]."""
    return (final - early).detach()


def discounted_return(rewards: Tensor, gamma: float) -> Tensor:
    """G_t = R_{t+1} + gamma G_{t+1} (Eq. 16), from the end; R_{t+1} is at place t: [B, T] to [B, T]."""
    returns = [torch.zeros_like(rewards[:, 0])]
    for t in reversed(range(rewards.shape[1])):
        returns.insert(0, rewards[:, t] + gamma * returns[0])
    return torch.stack(returns[:-1], 1)


def advantage(returns: Tensor) -> Tensor:
    """Returns minus their mean over the rows of the batch (Eq. 17): [B, T] to [B, T]."""
    return returns - returns.mean(0)


def policy_loss(logits: Tensor, boundaries: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE (Eq. 18), as a mean: makes decisions with a positive advantage more likely. [B, T] each to []."""
    log_pi = F.logsigmoid(torch.where(boundaries, logits, -logits))  # [B, T], log pi(a_t)
    return -(log_pi * advantages)[:, 1:].mean()  # the first boundary was forced


def rate_loss(logits: Tensor, target_rate: float) -> Tensor:
    """Push all logits down if boundaries are more likely than the target rate, else up (Eq. 24): [B, T] to []."""
    free = logits[:, 1:]
    return free.mean() * (free.sigmoid().mean() - target_rate).detach()


def joint_loss(model: UNet, byte_ids: Tensor, uniforms: Tensor) -> dict[str, Tensor]:
    """Losses and rate of a batch of bytes [B, T + 1], with random numbers [B, T]."""
    config, targets = model.config, byte_ids[:, 1:, None]  # [B, T, 1]
    states = model.encode(byte_ids[:, :-1])  # [B, T, D]
    boundaries, logits = draw_boundaries(model, states, uniforms)  # [B, T] each
    early = model.early_log_probs(states).gather(-1, targets).squeeze(-1)  # [B, T], log p_early(x_{t+1})
    final = model.log_probs(states, boundaries).gather(-1, targets).squeeze(-1)  # [B, T], log p(x_{t+1})
    advantages = advantage(discounted_return(reward(final, early), config.gamma))  # [B, T]
    auto, early_exit = -final.mean(), -early.mean()  # Eq. 25, 26, as means; the gradient of the first is Eq. 12
    policy = policy_loss(logits, boundaries, advantages)  # its gradient estimates Eq. 13
    rate = rate_loss(logits, config.target_rate)
    loss = auto + config.policy_weight * policy + config.rate_weight * rate + config.early_weight * early_exit  # Eq. 27
    losses = {"loss_language_model": auto, "loss_policy": policy, "loss_rate": rate, "loss_early_exit": early_exit}
    return {"loss": loss, **losses, "rate": boundaries[:, 1:].float().mean()}


# 4. Training (Appendix D).
def make_optimizer(model: UNet) -> torch.optim.AdamW:
    """AdamW; norms and the embedding have no weight decay."""
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and name != "embedding.weight"]
    others = [p for name, p in model.named_parameters() if p.dim() == 1 or name == "embedding.weight"]
    decayed = {"params": matrices, "weight_decay": model.config.weight_decay}
    return torch.optim.AdamW([decayed, {"params": others, "weight_decay": 0.0}], betas=(0.9, model.config.beta2))


def learning_rate(config: Config, update: int) -> float:
    """Linear warm-up, then a cosine down to the floor; updates count from 1."""
    if update < config.warm_up:
        return config.lr * update / config.warm_up
    progress = (update - config.warm_up) / (config.num_updates + 1 - config.warm_up)
    return config.lr * (config.lr_floor + (1 - config.lr_floor) * (1 + math.cos(math.pi * progress)) / 2)


def train(model: UNet, text: bytes) -> Iterator[dict[str, float]]:
    """Train on random windows of a text; yields the metrics of every update."""
    config, optimizer = model.config, make_optimizer(model)
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8)  # [bytes of the text]
    windows, draws = torch.Generator().manual_seed(config.seed), torch.Generator().manual_seed(config.seed)
    for update in range(1, config.num_updates + 1):
        starts = torch.randint(len(data) - config.num_bytes, (config.num_rows, 1), generator=windows)
        byte_ids = data[starts + torch.arange(config.num_bytes + 1)].long()  # [B, T + 1]
        uniforms = torch.rand(config.num_bytes, config.num_rows, generator=draws).T  # [B, T]
        metrics = joint_loss(model.train(), byte_ids, uniforms)
        optimizer.zero_grad()
        metrics["loss"].backward()
        metrics["grad_norm"] = nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, update)
        optimizer.step()
        yield {name: value.item() for name, value in metrics.items()}


@torch.no_grad()
def mark_boundaries(model: UNet, text: bytes) -> str:
    """Show a text with | where a token ends; drawn with the same random numbers in every call."""
    byte_ids = torch.tensor([[*text]])  # [1, T]
    uniforms = torch.rand(byte_ids.shape, generator=torch.Generator().manual_seed(0))
    boundaries, _ = draw_boundaries(model.eval(), model.encode(byte_ids), uniforms)
    marked = b"".join(bytes([byte]) + b"|" * end for byte, end in zip(text, boundaries[0].tolist(), strict=True))
    return marked.decode(errors="replace").replace("\n", " ")


def small_text(num_lines: int = 3000) -> bytes:
    """Lines whose second half repeats a name and an animal that byte layers no longer see there."""
    names, animals = "anna bert cleo dora emil fred gina hugo".split(), "bee cat dog fox hen owl pig rat".split()
    numbers = random.Random(0)
    pairs = [(numbers.choice(names), numbers.choice(animals)) for _ in range(num_lines)]
    return "".join(f"{name} has a {animal}, and {name} feeds the {animal}.\n" for name, animal in pairs).encode()


def main() -> None:
    """Train and print what is learned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="text to train on")
    for field in fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default, help="%(default)s")
    options = vars(parser.parse_args())
    file = options.pop("file")
    text, config = file.read_bytes() if file else small_text(), Config(**options)
    torch.manual_seed(config.seed)
    model = UNet(config)
    print("update   loss  bits per byte  early exit   rate")
    for update, metrics in enumerate(train(model, text), 1):
        if update == 1 or update % max(1, config.num_updates // 8) == 0:
            bits, early = (metrics[f"loss_{name}"] / math.log(2) for name in ("language_model", "early_exit"))
            print(f"{update:6} {metrics['loss']:6.3f} {bits:14.3f} {early:11.3f} {metrics['rate']:6.3f}")
            print(f"       {mark_boundaries(model, text[:110])}", flush=True)


if __name__ == "__main__":
    main()
