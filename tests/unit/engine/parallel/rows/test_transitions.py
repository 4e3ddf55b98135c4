"""Moves by their tags: vectors T-S1, T-A1 and T-A1/failures, mirror and restore, the move table."""

import pytest
import torch

from engine.parallel.layout import Family, Layout, TensorFamily, TensorLayout
from engine.parallel.rows import PaddingMode, RowRule, RowSet, TagError, TaggedRows, ValueState
from engine.parallel.rows import transitions as moves
from engine.parallel.rows.zigzag import split_rows
from tests.fakes.row_groups import run_ranks
from tests.fakes.vectors import vectors

VECTORS = vectors("path_a")
A1 = VECTORS["T-A1"]
PART, REP, UNIQ = ValueState.PART, ValueState.REP, ValueState.UNIQ


def column(values):
    return torch.tensor(values, dtype=torch.int64).reshape(-1, 1)


def listed(tensor):
    return tensor.flatten().tolist()


class Domain:
    """The ranks of T-A1: two attention groups of two ranks, four shares of the experts."""

    def __init__(self, inputs):
        self.rows = inputs["rows_per_dp_group"]
        self.weights = inputs["rank_weights"]
        self.layout = TensorLayout(tp=4, dp=2)
        assert self.layout.attn_tp == inputs["attn_tp"]

    def run(self, work):
        partitions = {
            "attn_tp": self.layout.groups(TensorFamily.ATTN_TP),
            "tp": self.layout.groups(TensorFamily.TP),
        }

        def serve(rank, attn_tp, tp):
            part = self.layout.attention_view.coordinates(rank)["dp"]
            own = TaggedRows(
                values=column(self.rows[part]),
                rows=RowSet.own([len(rows) for rows in self.rows], part),
                states={"attn_tp": REP, "tp": UNIQ},
            )
            return work(rank, own, attn_tp, tp, part)

        return run_ranks(partitions, 4, serve)

    def experts(self, rank, rows):
        return rows.with_values(rows.values * self.weights[rank], tp=PART)


@pytest.fixture
def domain():
    return Domain(A1["inputs"])


def test_t_s1_the_same_call_is_right_or_wrong_by_its_tag():
    inputs, expected = VECTORS["T-S1"]["inputs"], VECTORS["T-S1"]["expected"]

    def reduce(rank, tp, values, state):
        rows = TaggedRows(
            values=column(values[rank]), rows=RowSet.own([2], 0), states={"tp": state}
        )
        return listed(moves.reduce_own(rows, tp).values), listed(tp.all_reduce(rows.values))

    groups = {"tp": [[0, 1]]}
    partial = run_ranks(groups, 2, lambda r, tp: reduce(r, tp, inputs["partial"], PART))
    assert [found for found, _ in partial] == [expected["all_reduce_of_partial"]] * 2
    raw = run_ranks(groups, 2, lambda r, tp: listed(tp.all_reduce(column(inputs["replicated"][r]))))
    assert raw == [expected["all_reduce_of_replicated"]] * 2
    with pytest.raises(TagError, match="wants partial values, these are replicated"):
        run_ranks(groups, 2, lambda r, tp: reduce(r, tp, inputs["replicated"], REP))


def test_t_a1_attention_reduce_to_a1():
    def work(rank, attn_tp):
        # Rank 0 of each group holds the rows minus 1, rank 1 holds ones.
        rows = column(A1["inputs"]["rows_per_dp_group"][rank // 2])
        addend = rows - 1 if attn_tp.rank == 0 else torch.ones_like(rows)
        own = TaggedRows(
            values=addend, rows=RowSet.own([2, 1], rank // 2), states={"attn_tp": PART}
        )
        return listed(moves.reduce_own(own, attn_tp).values)

    assert run_ranks({"attn_tp": [[0, 1], [2, 3]]}, 4, work) == A1["expected"]["A1"]


@pytest.mark.parametrize("mode", PaddingMode)
def test_t_a1_gather_and_experts_to_a3(domain, mode):
    def work(rank, own, attn_tp, tp, part):
        everything = moves.gather_replicated(own, attn_tp, tp, mode)
        assert listed(own.values) == A1["inputs"]["rows_per_dp_group"][part]
        everything.require("tp", REP, "test")
        return everything, domain.experts(rank, everything)

    results = domain.run(work)

    gathered = [listed(rows.values) for rows, _ in results]
    if mode is PaddingMode.MAX:
        assert gathered == [A1["expected"]["A2_max"]] * 4
        assert results[0][0].rows.is_real == (True, True, True, False)
    else:
        assert gathered == A1["expected"]["A2_sum"]
        assert [listed(rows.values) for _, rows in results] == A1["expected"]["A3"]


@pytest.mark.parametrize("counts", [[3, 0, 2, 1], [0, 0, 5, 0], [0, 0, 0, 0], [2, 2, 2, 2]])
@pytest.mark.parametrize("mode", PaddingMode)
def test_without_copies_rows_are_gathered_and_not_summed(counts, mode):
    """Every rank an attention group of its own, with rows or without."""
    groups = {"attn_tp": [[rank] for rank in range(4)], "tp": [range(4)]}
    whole = column(range(1, sum(counts) + 1)).split(counts)

    def work(rank, attn_tp, tp):
        own = TaggedRows(
            values=whole[rank],
            rows=RowSet.own(counts, rank),
            states={"attn_tp": REP, "tp": UNIQ},
        )
        everything = moves.gather_replicated(own, attn_tp, tp, mode)
        back = moves.trim(moves.take_own(everything, attn_tp, tp, rank))
        assert torch.equal(back.values, whole[rank])
        real = torch.tensor(everything.rows.is_real, dtype=torch.bool)
        return listed(everything.values[real]), len(everything.values), tp.log

    for found, width, log in run_ranks(groups, 4, work):
        assert found == list(range(1, sum(counts) + 1))
        operation = "all_gather" if mode is PaddingMode.MAX else "sized_gather"
        assert [name for name, _ in log] == [operation]
        assert width == (4 * max(counts) if mode is PaddingMode.MAX else sum(counts))


@pytest.mark.parametrize("name", ["T-A1"])
def test_all_reduce_and_slice_is_a4a(domain, name):
    expected = VECTORS[name]["expected"]

    def work(rank, own, attn_tp, tp, part):
        everything = moves.gather_replicated(own, attn_tp, tp, PaddingMode.SUM)
        summed = moves.reduce_global(domain.experts(rank, everything), tp)
        result = moves.take_own(summed, attn_tp, tp, part)
        moves.require_replicated(result, attn_tp)
        shared = moves.add_replicated(result, own.values, attn_tp, tp)
        return listed(summed.values), listed(result.values), listed(shared.values)

    results = domain.run(work)

    assert [summed for summed, _, _ in results] == [expected["A4a_reduced"]] * 4
    assert [own for _, own, _ in results] == expected["A4a"]
    assert [own for _, _, own in results] == expected["shared_added_once_after"]


@pytest.mark.parametrize("mode", PaddingMode)
def test_t_a1_reduce_scatter_is_a4c_or_the_variable_form(domain, mode):
    def work(rank, own, attn_tp, tp, part):
        addends = domain.experts(rank, moves.gather_replicated(own, attn_tp, tp, mode))
        sizes = [1, 1, 1, 1] if mode is PaddingMode.MAX else A1["expected"]["variable_sizes"]
        scattered = tp.reduce_scatter(addends.values, sizes)
        result = moves.scatter_global(addends, attn_tp, tp, part)
        moves.require_replicated(result, attn_tp)
        return listed(scattered), listed(result.values), listed(moves.trim(result).values)

    results = domain.run(work)

    key = "A4c_reduce_scatter" if mode is PaddingMode.MAX else "variable_reduce_scatter"
    assert [scattered for scattered, _, _ in results] == A1["expected"][key]
    if mode is PaddingMode.MAX:
        assert [padded for _, padded, _ in results] == A1["expected"]["A4c"]
    assert [trimmed for _, _, trimmed in results] == A1["expected"]["A4a"]


# Each mistake twice: what it would give (raw collectives), and that the tags refuse it.


def partial_gather_on_replicated_rows(domain, is_raw):
    def work(rank, own, attn_tp, tp, part):
        if is_raw:
            own = own.with_values(own.values, attn_tp=PART)  # a lie
        everything = moves.gather_partial(own, attn_tp, tp)
        summed = moves.reduce_global(domain.experts(rank, everything), tp)
        return listed(moves.take_own(summed, attn_tp, tp, part).values)

    return domain.run(work)


def all_reduce_and_reduce_scatter(domain, is_raw):
    def work(rank, own, attn_tp, tp, part):
        everything = moves.gather_replicated(own, attn_tp, tp, PaddingMode.MAX)
        summed = moves.reduce_global(domain.experts(rank, everything), tp)
        if is_raw:
            summed = summed.with_values(summed.values, tp=PART)  # a lie
        return listed(moves.trim(moves.scatter_global(summed, attn_tp, tp, part)).values)

    return domain.run(work)


def no_reduction_slice_of_partial(domain, is_raw):
    def work(rank, own, attn_tp, tp, part):
        addends = domain.experts(rank, moves.gather_replicated(own, attn_tp, tp, PaddingMode.SUM))
        if is_raw:
            addends = addends.with_values(addends.values, tp=REP)  # a lie
        return listed(moves.take_own(addends, attn_tp, tp, part).values)

    return domain.run(work)


def replicated_shared_added_on_every_rank_before(domain, is_raw):
    def work(rank, own, attn_tp, tp, part):
        everything = moves.gather_replicated(own, attn_tp, tp, PaddingMode.MAX)
        addends = domain.experts(rank, everything)
        if is_raw:
            addends = addends.with_values(addends.values + everything.values)
        else:
            addends = moves.add_replicated(addends, everything.values, attn_tp, tp)
        return listed(moves.trim(moves.scatter_global(addends, attn_tp, tp, part)).values)

    return domain.run(work)


MISTAKES = {
    mistake.__name__: mistake
    for mistake in (
        partial_gather_on_replicated_rows,
        all_reduce_and_reduce_scatter,
        no_reduction_slice_of_partial,
        replicated_shared_added_on_every_rank_before,
    )
}


FAILURES = VECTORS["T-A1/failures"]["expected"]


@pytest.mark.parametrize("name", FAILURES, ids=[f"T-A1/failures-{name}" for name in FAILURES])
def test_t_a1_failures(domain, name):
    wrong = FAILURES[name]
    assert MISTAKES[name](domain, is_raw=True) == wrong
    assert wrong != A1["expected"]["A4a"]
    with pytest.raises(TagError):
        MISTAKES[name](domain, is_raw=False)


def test_a_reduction_over_the_wrong_group_is_refused():
    def work(rank, tp):
        own = TaggedRows(values=column([1]), rows=RowSet.own([1], 0), states={"attn_tp": PART})
        return moves.reduce_own(own, tp)

    with pytest.raises(TagError, match="reduce_own over tp wants partial values"):
        run_ranks({"tp": [[0, 1]]}, 2, work)


def test_replicated_rows_that_differ_are_found():
    def work(rank, tp):
        rows = TaggedRows(values=column([rank]), rows=RowSet.own([1], 0), states={"tp": REP})
        moves.require_replicated(rows, tp)

    with pytest.raises(TagError, match="rank 1 has other values than rank 0"):
        run_ranks({"tp": [[0, 1]]}, 2, work)


@pytest.mark.parametrize("lengths", [[8], [7, 0, 3], [1], [0], [2, 5, 11]])
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_mirror_and_restore(lengths, cp):
    layout = Layout(cp=cp)
    values = torch.arange(sum(lengths) * 2).reshape(-1, 2) + 1
    split = split_rows(lengths, cp)

    def work(rank, cp):
        own = TaggedRows(
            values=values, rows=RowSet.own([len(values)], 0), states={"cp": REP, "dp": UNIQ}
        )
        part = moves.mirror(own, cp, split)
        assert part.rows.rule is RowRule.MIRROR
        assert part.rows.num_rows == split.mirror_length
        # Padding rows are zero, so doubling them leaves them zero.
        doubled = part.with_values(part.values * 2)
        back = moves.restore(doubled, cp, split)
        back.require("cp", REP, "test")
        back.require("dp", UNIQ, "test")
        return back.values

    for found in run_ranks({"cp": layout.groups(Family.CP)}, cp, work):
        assert torch.equal(found, values * 2)


def test_every_move_refuses_other_rows():
    rows = TaggedRows(values=column([1]), rows=RowSet.own([1], 0), states={"tp": PART})
    for name in ("reduce_global", "join", "restore", "scatter_global", "take_own"):
        move = moves.MOVES[name]
        assert move.source is not RowRule.OWN
        with pytest.raises(TagError, match=f"{name} wants {move.source.value} rows, these are own"):
            moves._check(name, rows, None)


def test_the_table_holds_every_move():
    functions = {
        name
        for name, item in vars(moves).items()
        if callable(item) and not name.startswith("_") and item.__module__ == moves.__name__
    }
    assert set(moves.MOVES) <= functions
    legal = {
        (m.source.value, m.wants.value, m.target.value, m.gives.value) for m in moves.MOVES.values()
    }
    # The rows of the transition table of the layout specification, dispatch and fetch aside.
    assert legal == {
        ("own", "partial", "own", "replicated"),
        ("own", "replicated", "chunk", "unique"),
        ("chunk", "unique", "own", "replicated"),
        ("own", "replicated", "global", "replicated"),
        ("own", "partial", "global", "replicated"),
        ("global", "partial", "global", "replicated"),
        ("global", "partial", "own", "replicated"),
        ("global", "replicated", "own", "replicated"),
        ("own", "replicated", "mirror", "unique"),
        ("mirror", "unique", "own", "replicated"),
    }
