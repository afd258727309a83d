"""Environments over documents on disk, in order and in shares: equal texts, and a position that can be restored."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv, ByteBoundaryGym
from torchrl.envs.utils import check_env_specs

from rltok_rl.data import CachedSource, OrderedSource, RepeatedSource, ShardedSource, TextSource, write_cache
from rltok_rl.data.languages import Recall

from ..states import same
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


class Counted(CachedSource):
    """Counts the windows that are read from disk."""

    rows_read = 0

    def cut(self, start, stop):
        self.rows_read += 1
        return super().cut(start, stop)


def dealers(cache):
    """Windows at random, in an order, and several times, from one cache; made anew for each environment."""
    whole = {"short_documents": "whole"}
    return {
        "random": lambda: Counted(cache, **whole),
        "in order": lambda: OrderedSource(Counted(cache, **whole), length=STEPS + 1, seed=0, tail="short"),
        "repeated": lambda: RepeatedSource(Counted(cache), 2),
    }


@pytest.mark.parametrize("kind", ["random", "in order", "repeated"])
def test_every_process_reads_its_own_windows_and_no_others(model, tmp_path, kind):
    """Three processes with two rows each read together what one with six reads, and none reads more than its texts."""
    texts = {"random": SHORT[:3], "in order": [*SHORT, LONG], "repeated": [LONG, LONG[7:]]}
    write_cache(texts[kind], tmp_path / "cache")
    make = dealers(tmp_path / "cache")[kind]

    def count(env):
        source = env.source if isinstance(env.source, Counted) else env.source.source
        return source.rows_read

    whole = over(model, make(), num_rows=6)
    expected = bytes_of(whole, STEPS)
    read, begun = [], []
    for index in range(3):
        env = over(model, make(), num_rows=2)
        generator = torch.Generator().manual_seed(0)
        mine = env.parallel_rollout(max_steps=STEPS, generator=generator, part=(index, 3))
        assert torch.equal(mine["byte"], expected[2 * index : 2 * index + 2])
        read.append(count(env))
        begun.append(int((mine["position"] == 0).sum()))
        assert same(env.random_state(), whole.random_state())
    assert read == begun and sum(read) == count(whole)
    assert (sum(read) > 6) == (kind != "repeated")  # rows begin anew where documents are short


def test_what_a_source_measures_is_what_it_reads(cache):
    """Of every kind of source, windows that end early among them."""
    memory = TextSource([*SHORT, LONG], short_documents="whole")
    sources = [
        memory,
        CachedSource(cache, short_documents="whole"),
        in_order([*SHORT, LONG]),
        RepeatedSource(memory, 2),
        ShardedSource(memory, rank=1, world_size=2, num_rows=8),
        Recall(),
    ]
    for source in sources:
        places = source.pick(8, STEPS + 1, torch.Generator().manual_seed(0))
        windows = source.read(places, STEPS + 1)
        lengths, ends = source.measure(places, STEPS + 1)
        assert torch.equal(lengths, windows.lengths) and torch.equal(ends, windows.ends)


@torch.no_grad()
def test_processes_run_the_model_equally_often(model, monkeypatch):
    """For any lengths: with a sharded model, a pass that only one process makes would wait forever."""
    texts = [LONG[: STEPS + 1], LONG[:9], LONG[:4], "ab"]
    encode, passes = type(model).encode, []

    def counted(self, *given, **options):
        passes.append(0)
        return encode(self, *given, **options)

    monkeypatch.setattr(type(model), "encode", counted)
    found = []
    for seed in range(12):
        counts = []
        for index in range(2):
            env = ByteBoundaryEnv(
                model, TextSource(texts, short_documents="whole"), num_steps=STEPS, batch_size=(2,), seed=seed
            )
            passes.clear()
            env.parallel_rollout(generator=torch.Generator().manual_seed(0), part=(index, 2))
            counts.append(len(passes))
        assert counts[0] == counts[1]
        found.append(counts[0])
    assert {1, 2} <= set(found)
