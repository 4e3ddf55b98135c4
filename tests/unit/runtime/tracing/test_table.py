"""The table of spans is complete and sound."""

from typing import get_args

from runtime.tracing.table import SPANS, Attribute, EventName, Kind, LinkKind, SpanName


def test_every_name_has_a_row() -> None:
    assert set(SPANS) == set(get_args(SpanName))


def test_rows_use_known_words() -> None:
    for name, row in SPANS.items():
        assert row.kind in get_args(Kind)
        assert set(row.attributes) <= set(get_args(Attribute)), name
        assert set(row.events) <= set(get_args(EventName)), name
        assert set(row.links) <= set(get_args(LinkKind)), name
        assert row.parent == "" or row.parent in SPANS


def test_calls_of_the_store_are_client_spans_so_that_service_graphs_get_their_edges() -> None:
    for name, row in SPANS.items():
        assert (row.kind == "client") == name.startswith("kvstore.")
        if row.kind == "client":
            assert {"db.system.name", "db.operation.name"} <= set(row.attributes)


def test_the_model_is_named_on_the_front_door_alone() -> None:
    """Dashboards of cost count every span that has it."""
    assert all("gen_ai." not in key for row in SPANS.values() for key in row.attributes)


def test_no_name_offers_a_place_for_content() -> None:
    words = {"content", "text", "prompt", "messages", "token_ids", "completion"}
    assert not [key for key in get_args(Attribute) if words & set(key.split("."))]
