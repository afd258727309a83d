"""`experiments/reinforce.py`, the method in one file, computes what the library computes, and trains by itself."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from rltok_rl.agents import LearnedBoundaryActor
from rltok_rl.envs import ByteBoundaryEnv
from rltok_rl.experiments import reinforce

from rltok_rl.models import UNet, preset
from rltok_rl.objectives import JointLoss
from rltok_rl.training import LoopOptions, Trainer

from .layout import ROOT

FILE = ROOT / "experiments" / "reinforce.py"
PROSE = ROOT / "tests" / "text" / "prose.txt"
TINY = {name: value for name, value in preset("tiny").to_dict().items() if name in asdict(reinforce.Config())}
CONFIG = reinforce.Config(
    **{**TINY, "attention_cap": 0.0}, gamma=0.99, num_rows=8, num_bytes=96, num_updates=12, warm_up=4, seed=3
)
LOSSES = ("loss_language_model", "loss_early_exit", "loss_policy", "loss_rate")
CASES = {"tiny": CONFIG, "deeper": replace(CONFIG, attention_cap=5.0, num_token_layers=2, num_lags=3, boundary_cap=2.0)}
CASES["no norm"] = replace(CONFIG, encoder_norm=0)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def unet(config: reinforce.Config) -> UNet:
    """The library's model with the reference's sizes."""
    sizes = {name: getattr(config, name) for name in TINY}
    sizes |= {"attention_cap": config.attention_cap or None, "encoder_norm": bool(config.encoder_norm)}
    return UNet(preset("tiny", **sizes))


def pair(config: reinforce.Config) -> tuple[reinforce.UNet, UNet, ByteBoundaryEnv, JointLoss]:
    """The reference and the library with equal weights, none at its initial value: equal heads would hide errors."""
    reference, model = reinforce.UNet(config), unet(config)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.load_state_dict(reference.state_dict())
    shape = {"num_steps": config.num_bytes, "batch_size": (config.num_rows,)}
    env = ByteBoundaryEnv(model, PROSE.read_bytes(), seed=config.seed, **shape)
    return reference, model, env, JointLoss.paper(target_rate=config.target_rate, gamma=config.gamma)


def unweighted(metrics, loss: JointLoss) -> dict[str, float]:
    """The library's losses without their coefficients."""
    return {name: float(metrics[name]) / float(loss.coefficient(name.removeprefix("loss_"))) for name in LOSSES}


def test_equal_seeds_give_equal_weights():
    torch.manual_seed(0)
    theirs = unet(CONFIG).state_dict()
    torch.manual_seed(0)
    reference = reinforce.UNet(CONFIG)
    assert all(torch.equal(weight, theirs[name]) for name, weight in reference.state_dict().items())
    reference.load_state_dict(theirs)  # strict: under equal names


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_first_batch(config):
    """Losses within 1e-6 (relative above 1); each gradient within 1e-5 of that parameter's largest entry."""
    reference, model, env, loss = pair(config)
    byte_ids = env.draw_windows(config.num_rows).byte_ids  # [B, T + 1]
    uniforms = torch.rand(config.num_rows, config.num_bytes)
    ours = reinforce.joint_loss(reference, byte_ids, uniforms)
    texts = [bytes(row) for row in byte_ids.tolist()]
    theirs = loss(env.parallel_rollout(LearnedBoundaryActor(model), uniforms=uniforms, text=texts))
    total = JointLoss.total(theirs)
    expected = {**unweighted(theirs.detach(), loss), "loss": total.item()}
    assert {name: ours[name].item() for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-6)
    ours["loss"].backward()
    total.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, parameter in reference.named_parameters():
        largest = gradients[name].abs().max().item()
        assert 0 < largest and (parameter.grad - gradients[name]).abs().max().item() <= 1e-5 * largest, name


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_twelve_updates_of_the_trainer(config):
    """Losses, gradient norm and rate within 1e-5; both draw texts and boundaries from the same seed."""
    reference, model, env, loss = pair(config)
    update_bytes = config.num_rows * config.num_bytes
    options = LoopOptions(
        total_bytes=config.num_updates * update_bytes,
        warm_up_bytes=config.warm_up * update_bytes,
        betas=(0.9, config.beta2),
        **{name: getattr(config, name) for name in ("lr", "lr_floor", "weight_decay", "clip_norm")},
    )
    trainer = Trainer(model, env, loss, options, seed=config.seed)
    for ours in reinforce.train(reference, PROSE.read_bytes()):
        theirs = trainer.update()
        expected = {**unweighted(theirs, loss), **{name: theirs[name] for name in ("loss", "grad_norm", "rate")}}
        assert ours == pytest.approx(expected, rel=0, abs=1e-5), f"update {trainer.updates}"
    assert trainer.done and trainer.updates == config.num_updates == 12


def test_boundaries_in_evaluation():
    """Boundary logits have no soft cap then."""
    reference, model, env, _ = pair(CASES["deeper"])
    byte_ids, uniforms = env.draw_windows(8).byte_ids, torch.rand(8, CONFIG.num_bytes + 1)
    boundaries, logits = reinforce.draw_boundaries(reference.eval(), reference.encode(byte_ids), uniforms)
    out = model.eval()(byte_ids, uniforms=uniforms)
    assert torch.equal(boundaries, out.boundaries)
    torch.testing.assert_close(logits, out.boundary_logits)


@pytest.mark.parametrize("file", [[], [PROSE]], ids=["its own text", "a file"])
def test_the_loss_falls(file):
    command = [sys.executable, FILE, *file, "--num_updates", "16", "--warm_up", "4", "--num_rows", "4"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    losses = [float(line.split()[1]) for line in printed.splitlines() if re.match(r" *\d+ +\d", line)]
    assert len(losses) == 9 and losses[-1] < losses[0] - 1
    assert printed.count("|") > 9


def test_the_file_is_short_and_needs_torch_alone():
    source = FILE.read_text()
    nodes = list(ast.walk(ast.parse(source)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {"." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= {"torch", *sys.stdlib_module_names}
    number = len(source.splitlines())
    assert number <= 350
    line = f"The whole method in {number} lines: [experiments/reinforce.py](experiments/reinforce.py)."
    assert re.search(r"!\[[^\]]*\]\([^)]*\)\n\n(.*)", (ROOT / "README.md").read_text()).group(1) == line
