"""Spans find their places, whatever came and whatever is missing."""

from hypothesis import given
from hypothesis import strategies as st

from cli.traces.tree import labels_of, nodes_of, traces_of
from tests.fakes.trace_spans import a_request, a_span


def test_a_walk_through_the_tree_in_the_order_of_begins() -> None:
    walked = [(node.depth, node.span.name) for node in nodes_of(a_request())]
    assert walked == [
        (0, "disagg.v1.GenerationService/Generate"),
        (1, "balancer.route"),
        (1, "disagg.v1.PrefillService/Prefill"),
        (2, "prefill.commit"),
        (1, "decode.fetch"),
        (2, "decode.generate"),
    ]


def test_ends_of_levels_and_guides() -> None:
    nodes = {node.span.name: node for node in nodes_of(a_request())}
    assert nodes["decode.fetch"].is_last
    assert not nodes["balancer.route"].is_last
    assert nodes["prefill.commit"].guides == (False, True)
    assert nodes["decode.generate"].guides == (False, False)
    assert nodes["decode.fetch"].has_children
    assert not nodes["balancer.route"].has_children


def test_a_span_without_its_parent_is_a_root() -> None:
    nodes = nodes_of([a_span(2, "x", parent=1, at=1), a_span(3, "y", parent=9)])
    assert [(node.depth, node.span.name) for node in nodes] == [(0, "y"), (0, "x")]


def test_traces_in_the_order_of_their_begin() -> None:
    traces = traces_of([a_span(1, "b", trace=2, at=5), a_span(2, "a", trace=1, at=9)])
    assert [trace[0].name for trace in traces] == ["b", "a"]


def test_labels_of_processes() -> None:
    def label(process: str) -> str:
        [found] = labels_of([a_span(1, "x", process=process)]).values()
        return found

    assert label("disagg-decode/decode-0-r12-3426afe5") == "decode r12"
    assert label("disagg-balancer/balancer-ab12") == "balancer"
    assert label("mine/thing") == "mine"
    assert label("/") == "unknown"


def test_of_several_groups_of_a_role_the_group_is_named() -> None:
    names = ("decode/decode-0-r0-aa", "decode/decode-1-r0-bb", "prefill/prefill-0-r0-cc")
    spans = [a_span(number, "x", process=f"disagg-{name}") for number, name in enumerate(names, 1)]
    assert sorted(labels_of(spans).values()) == ["decode-0 r0", "decode-1 r0", "prefill r0"]


parents = st.lists(st.integers(0, 9), min_size=1, max_size=9)


@given(parents)
def test_every_span_comes_at_most_once_even_in_circles(above: list[int]) -> None:
    spans = [a_span(n, "x", parent=parent, at=n) for n, parent in enumerate(above, 1)]
    nodes = nodes_of(spans)
    ids = [node.span.span_id for node in nodes]
    assert len(ids) == len(set(ids))
    depths = {node.span.span_id: node.depth for node in nodes}
    for node in nodes:
        if node.depth:
            assert depths[node.span.parent_span_id] == node.depth - 1
