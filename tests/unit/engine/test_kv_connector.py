"""The in-memory export keeps what it was given and notices what it was given twice."""

from __future__ import annotations

import pytest

from engine.kv_connector import InMemoryExport, NullExport


def test_a_complete_export_gives_images_of_its_end_and_its_boundaries() -> None:
    export = InMemoryExport(4, state_every_blocks=2)
    assert [end for end in range(4, 25, 4) if export.wants_state(end)] == [8, 16, 24]
    with pytest.raises(LookupError, match="has not reached the end"):
        export.image()
    for idx in range(3):
        export.save_block(idx, bytes([idx]))
    export.save_state(8, b"state8")
    export.save_tail(13, b"partial", b"state13")
    image = export.image()
    assert image.num_tokens == 13
    assert image.blocks == (b"\0", b"\1", b"\2")
    assert (image.partial, image.state) == (b"partial", b"state13")
    prefix = export.prefix_image(8)
    assert (prefix.num_tokens, prefix.blocks, prefix.state) == (8, (b"\0", b"\1"), b"state8")
    with pytest.raises(LookupError):
        export.prefix_image(4)


def test_missing_doubled_and_different_blocks_are_noticed() -> None:
    first = InMemoryExport(4)
    first.save_block(0, b"a")
    first.save_tail(9, b"", b"s")
    with pytest.raises(LookupError):
        first.image()
    with pytest.raises(ValueError, match="block 0 came twice"):
        first.save_block(0, b"a")
    second = InMemoryExport(4, given=first)
    second.save_block(0, b"a")
    third = InMemoryExport(4, given=first)
    with pytest.raises(ValueError, match="block 0 differs"):
        third.save_block(0, b"b")
    assert not InMemoryExport(4).wants_state(4)


def test_the_null_export_wants_nothing_and_keeps_nothing() -> None:
    export = NullExport()
    export.save_block(0, b"a")
    export.save_state(4, b"s")
    export.save_tail(4, b"", b"s")
    assert not export.wants_state(4)
    assert not vars(export)
