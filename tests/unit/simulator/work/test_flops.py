"""Work of chunks and steps: additivity, and what decode reads."""

from __future__ import annotations

from simulator.work.flops import Layers, ModelWork, Work
from simulator.work.pairs import Visits

FULL = Visits(flops=3, entry_bytes=10)
WINDOW = Visits(flops=5, entry_bytes=100, cap=4, is_window=True)
WORK = ModelWork(
    layers=(Layers(row=7, routed=2, entries=((1, 2, 11),), visits=((2, FULL), (1, WINDOW))),),
    head=1,
)


def test_a_chunk_by_hand() -> None:
    # Rows 3 and 4: full attention sees 3 + 4 entries in each of 2 layers, the window the same;
    # one entry of two tokens is completed.
    assert WORK.prefill(2, 4, prompt=4) == Work(
        own=1 + 2 * 7 + 11 + 2 * 3 * 7 + 5 * 7, routed=2 * 2
    )


def test_chunks_add_up_to_the_whole_but_for_logits() -> None:
    whole = WORK.prefill(100, 100, prompt=100)
    parts = [WORK.prefill(20, 20 * (n + 1), prompt=100) for n in range(5)]
    assert sum(part.own for part in parts) - 5 == whole.own - 1
    assert sum(part.routed for part in parts) == whole.routed


def test_decode_reads_all_it_keeps_up_to_the_caps() -> None:
    assert WORK.read_bytes(3) == 2 * 3 * 10 + 3 * 100
    assert WORK.read_bytes(50) == 2 * 50 * 10 + 4 * 100


def test_replay_leaves_early_rows_of_late_layers_out() -> None:
    late = ModelWork(layers=(Layers(row=10, full_row=1, left_out=2, is_replayed=True),), head=0)
    assert late.prefill(100, 100, prompt=100, keep=None).own == 1100
    assert late.prefill(100, 100, prompt=100, keep=30).own == 30 * 10 + 70 * 2 + 100
    assert late.prefill(50, 50, prompt=100, keep=30).own == 10 + 49 * 2 + 50  # a dummy row
