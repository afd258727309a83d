"""Environments over documents on disk, in order and in parts: equal texts, and a position that can be restored."""

from __future__ import annotations

import pytest
import torch
from rltok_rl.envs import ByteBoundaryEnv, ByteBoundaryGym
from torchrl.envs.utils import check_env_specs

from rltok_rl.data import CachedSource, OrderedSource, RepeatedSource, TextSource, write_cache
from rltok_rl.data.languages import Recall

from ..each import each
from ..states import same
from .conftest import LONG, SHORT

STEPS = 24
WHOLE = {"short_documents": "whole"}
DOCUMENTS = [*SHORT, LONG]


@pytest.fixture
def cache(tmp_path):
    write_cache(DOCUMENTS, tmp_path / "cache")
    return tmp_path / "cache"


def over(model, source, num_rows=4):
    return ByteBoundaryEnv(model, source, num_steps=STEPS, batch_size=(num_rows,), seed=0)


def in_memory(texts=DOCUMENTS):
    return TextSource(texts, **WHOLE)


def in_order(source):
    return OrderedSource(source, length=STEPS + 1, seed=0, tail="short")


def bytes_of(env, num_steps=40, part=(0, 1)):
    """The bytes of a rollout in which rows begin anew at their own times."""
    generator = torch.Generator().manual_seed(0)
    return env.parallel_rollout(max_steps=num_steps, generator=generator, part=part)["byte"]


def test_an_order_from_disk_stepped_as_in_one_pass(model, cache):
    def make():
        return over(model, in_order(CachedSource(cache, **WHOLE)))

    check_env_specs(make())
    gym = ByteBoundaryGym(model=model, text=CachedSource(cache, **WHOLE), num_steps=STEPS)
    assert gym.reset(seed=0)[0]
    actions = torch.randint(2, (4, 40), generator=torch.Generator().manual_seed(1))
    whole, stepped = make().parallel_rollout(actions=actions), make()
    seen = stepped.reset()
    for step in range(40):
        assert torch.equal(seen["byte"], whole["byte"][:, step])
        _, seen = stepped.step_and_maybe_reset(seen.set("action", actions[:, step]))


SOURCES = {
    "random": in_memory,
    "ordered": lambda: in_order(in_memory()),
    "siblings": lambda: RepeatedSource(in_order(in_memory(LONG)), 2),
}


@each(name=SOURCES)
def test_a_position_can_be_restored(name, model):
    steps = STEPS if name == "siblings" else 40  # siblings begin together
    first, second = over(model, SOURCES[name]()), over(model, SOURCES[name]())
    bytes_of(first, steps)
    state = first.random_state()
    expected = [bytes_of(first, steps) for _ in range(3)]
    second.set_random_state(state)
    assert all(torch.equal(bytes_of(second, steps), texts) for texts in expected)
    assert torch.is_tensor(state) == (name == "random")


class Counted(CachedSource):
    """Counts the windows that are read from disk."""

    rows_read = 0

    def cut(self, start, stop):
        self.rows_read += 1
        return super().cut(start, stop)


DEALT = {
    "random": (SHORT[:3], lambda source: source),
    "in order": (DOCUMENTS, in_order),
    "repeated": ([LONG, LONG[7:]], lambda source: RepeatedSource(source, 2)),
}


@each(kind=DEALT)
def test_every_process_reads_its_own_windows_and_no_others(kind, model, tmp_path):
    """Three processes with two rows each read together what one with six reads, and none reads more than its texts."""
    documents, deal = DEALT[kind]
    write_cache(documents, tmp_path / kind)

    def make(num_rows):
        source = Counted(tmp_path / kind, **WHOLE)
        return over(model, deal(source), num_rows), source

    whole, every = make(6)
    expected = bytes_of(whole, STEPS)
    read = []
    for index in range(3):
        env, source = make(2)
        assert torch.equal(bytes_of(env, STEPS, (index, 3)), expected[2 * index : 2 * index + 2])
        read.append(source.rows_read)
        assert same(env.random_state(), whole.random_state())
    assert sum(read) == every.rows_read
    assert (sum(read) > 6) == (kind != "repeated")  # rows begin anew where documents are short


def test_what_a_source_measures_is_what_it_reads(cache):
    memory = in_memory()
    repeated, disk = RepeatedSource(memory, 2), CachedSource(cache, **WHOLE)
    for source in [memory, disk, in_order(memory), repeated, Recall()]:
        places = source.pick(8, STEPS + 1, torch.Generator().manual_seed(0))
        windows = source.read(places, STEPS + 1)
        lengths, ends = source.measure(places, STEPS + 1)
        assert torch.equal(lengths, windows.lengths) and torch.equal(ends, windows.ends)


@torch.no_grad()
def test_processes_run_the_model_equally_often(model, monkeypatch):
    """For any lengths: with a sharded model, a pass that only one process makes would wait forever."""
    texts, encode, passes = [LONG[: STEPS + 1], LONG[:9], LONG[:4], "ab"], type(model).encode, []
    monkeypatch.setattr(type(model), "encode", lambda *args, **options: passes.append(0) or encode(*args, **options))
    found = set()
    for seed in range(12):
        counts = []
        for index in range(2):
            env = ByteBoundaryEnv(model, in_memory(texts), num_steps=STEPS, batch_size=(2,), seed=seed)
            passes.clear()
            bytes_of(env, STEPS, (index, 2))
            counts.append(len(passes))
        assert counts[0] == counts[1]
        found.add(counts[0])
    assert {1, 2} <= found
