"""Sequences between pages, host memory and exports, on the toy runner."""

from engine.block_manager import BlockManager
from engine.config import CacheSize
from engine.kv_connector import InMemoryExport
from engine.request import EngineRequest
from engine.schedule import Preemption
from engine.sequence import Sequence
from engine.state_mover import StateMover
from tests.fakes.toy_runner import ToyRunner

BLOCK = 4
TOKENS = tuple(range(10, 20))


class Bench:
    """One sequence of ten tokens, admitted, with its KV in place."""

    def __init__(self, *, export: InMemoryExport | None = None, boundaries: tuple[int, ...] = ()):
        self.runner = ToyRunner(8, 3, BLOCK)
        self.blocks = BlockManager(8, 3)
        cache = CacheSize(num_pages=8, num_state_slots=3, block_tokens=BLOCK)
        self.mover = StateMover(self.runner, self.blocks, cache)
        request = EngineRequest(request_id="r", token_ids=TOKENS, export=export)
        self.sequence = Sequence(
            request, arrival_idx=0, max_kv_tokens=16, max_pages=4, boundaries=boundaries
        )
        assert self.blocks.try_allocate("r", 3)

    def compute(self, end: int) -> None:
        """Puts the KV of the first `end` tokens where the tables say."""
        table, slot = self.blocks.block_table("r"), self.blocks.state_slot("r")
        for position in range(self.sequence.num_computed, end):
            self.runner.pages[table[position // BLOCK], position % BLOCK] = TOKENS[position]
        self.runner.slots[slot] = (end, 1000 + end)
        self.sequence.num_computed = end


def test_a_swapped_sequence_comes_back_to_other_pages() -> None:
    bench = Bench()
    bench.compute(10)
    before = Preemption(
        sequence=bench.sequence,
        block_table=bench.blocks.block_table("r"),
        state_slot=bench.blocks.state_slot("r"),
        num_computed=10,
    )
    bench.mover.swap_out(before)
    image = bench.sequence.image
    assert image is not None
    assert image.num_tokens == 10
    assert bench.mover.swapped_bytes == image.num_bytes > 0
    bench.blocks.free("r")
    bench.runner.pages[:] = -7
    assert bench.blocks.try_allocate("other", 2)
    assert bench.blocks.try_allocate("r", 3)
    bench.mover.load(bench.sequence)
    table = bench.blocks.block_table("r")
    assert table != before.block_table
    assert bench.runner.pages[list(table)].reshape(-1)[:10].tolist() == list(TOKENS)
    assert bench.runner.slots[bench.blocks.state_slot("r")] == (10, 1010)
    assert bench.sequence.image is None


def test_a_sequence_without_image_starts_with_an_empty_slot() -> None:
    bench = Bench()
    slot = bench.blocks.state_slot("r")
    bench.runner.slots[slot] = (7, 7)
    bench.mover.load(bench.sequence)
    assert bench.runner.slots[slot] == (0, 0)


def test_blocks_boundary_states_and_tail_are_exported_once() -> None:
    export = InMemoryExport(BLOCK)
    bench = Bench(export=export, boundaries=(8,))
    bench.compute(3)
    bench.mover.export(bench.sequence)
    assert export.blocks == {}
    bench.compute(8)
    bench.mover.export(bench.sequence)
    assert sorted(export.blocks) == [0, 1]
    assert sorted(export.states) == [8]
    assert export.tail is None
    bench.compute(10)
    bench.mover.export(bench.sequence)
    assert sorted(export.blocks) == [0, 1]
    assert export.tail is not None
    assert export.tail[0] == 10


def test_what_was_generated_is_not_exported() -> None:
    export = InMemoryExport(BLOCK)
    bench = Bench(export=export)
    bench.sequence.num_computed = 11
    bench.mover.export(bench.sequence)
    assert export.tail is None
    assert export.blocks == {}


def test_a_replay_that_is_swapped_keeps_the_blocks_ahead_of_it() -> None:
    bench = Bench()
    bench.compute(8)
    bench.runner.slots[bench.blocks.state_slot("r")] = (5, 1005)
    bench.sequence.num_computed, bench.sequence.replay_end = 5, 8
    before = Preemption(
        sequence=bench.sequence,
        block_table=bench.blocks.block_table("r"),
        state_slot=bench.blocks.state_slot("r"),
        num_computed=5,
    )
    bench.mover.swap_out(before)
    image = bench.sequence.image
    assert image is not None
    assert (image.num_tokens, image.replay_from, len(image.blocks)) == (8, 5, 2)
    bench.blocks.free("r")
    bench.runner.pages[:] = -7
    assert bench.blocks.try_allocate("r", 3)
    bench.mover.load(bench.sequence)
    table = bench.blocks.block_table("r")
    assert bench.runner.pages[list(table)].reshape(-1)[:8].tolist() == list(TOKENS[:8])
    assert bench.runner.slots[bench.blocks.state_slot("r")] == (5, 1005)
