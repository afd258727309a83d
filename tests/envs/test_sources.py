"""Environments over documents on disk, in order, in shares: the same text, and a position that can be kept."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv, ByteBoundaryGym
from torchrl.envs.utils import check_env_specs

from rltok_rl.data import CachedSource, OrderedSource, RepeatedSource, ShardedSource, TextSource, write_cache

from .conftest import LONG, SHORT

STEPS = 24


@pytest.fixture
def cache(tmp_path):
    write_cache([*SHORT, LONG], tmp_path / "cache")
    return tmp_path / "cache"


def over(model, source, num_rows=4):
    return ByteBoundaryEnv(model, source, num_steps=STEPS, batch_size=(num_rows,), seed=0)


def in_order(texts=LONG):
    return OrderedSource(TextSource(texts, short_documents="whole"), length=STEPS + 1, seed=0, tail="short")


def bytes_of(env, num_steps=40):
    """The bytes of a rollout in which rows begin anew at their own times."""
    generator = torch.Generator().manual_seed(0)
    return env.parallel_rollout(max_steps=num_steps, generator=generator)["byte"]


def test_from_disk_as_from_memory(model, cache):
    one = over(model, CachedSource(cache, short_documents="whole"))
    two = over(model, TextSource([*SHORT, LONG], short_documents="whole"))
    for _ in range(3):
        assert torch.equal(bytes_of(one), bytes_of(two))


def test_specs(model, cache):
    check_env_specs(over(model, in_order([*SHORT, LONG])))
    gym = ByteBoundaryGym(model=model, text=CachedSource(cache, short_documents="whole"), num_steps=STEPS)
    assert gym.reset(seed=0)[0]


def test_stepped_as_in_one_pass(model):
    """Texts of an order are dealt alike on both paths, rows that begin anew included."""
    actions = torch.randint(2, (4, 40), generator=torch.Generator().manual_seed(1))
    env = over(model, in_order([*SHORT, LONG]))
    whole = env.parallel_rollout(actions=actions)
    stepped = over(model, in_order([*SHORT, LONG]))
    seen = stepped.reset()
    for step in range(40):
        assert torch.equal(seen["byte"], whole["byte"][:, step])
        _, seen = stepped.step_and_maybe_reset(seen.set("action", actions[:, step]))


def sources():
    return {
        "random": lambda: TextSource([*SHORT, LONG], short_documents="whole"),
        "ordered": lambda: in_order([*SHORT, LONG]),
        "share": lambda: ShardedSource(in_order([*SHORT, LONG]), rank=1, world_size=2, num_rows=4),
        "siblings": lambda: RepeatedSource(ShardedSource(in_order(), rank=1, world_size=2, num_rows=2), 2),
    }


@pytest.mark.parametrize("name", list(sources()))
def test_a_position_can_be_kept(model, name):
    steps = STEPS if name == "siblings" else 40  # siblings begin together
    first = over(model, sources()[name]())
    bytes_of(first, steps)
    state = first.random_state()
    want = [bytes_of(first, steps) for _ in range(3)]
    second = over(model, sources()[name]())
    second.set_random_state(state)
    for expected in want:
        assert torch.equal(bytes_of(second, steps), expected)
    assert torch.is_tensor(state) == (name == "random")


def test_a_position_of_another_kind_is_refused(model):
    random, ordered = over(model, TextSource(LONG)), over(model, in_order())
    with pytest.raises(ValueError, match="state must have the keys"):
        ordered.set_random_state(random.random_state())
    with pytest.raises(ValueError, match="state must be empty for TextSource"):
        random.set_random_state(ordered.random_state())


@pytest.mark.parametrize("make", [lambda: TextSource(LONG), in_order])
def test_two_processes_read_what_one_does(model, make):
    alone = over(model, make(), 4)
    shares = [over(model, ShardedSource(make(), rank=rank, world_size=2, num_rows=2), 2) for rank in range(2)]
    for _ in range(5):
        assert torch.equal(torch.cat([bytes_of(env, STEPS) for env in shares]), bytes_of(alone, STEPS))
