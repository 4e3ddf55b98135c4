"""Sizes of blocks and state against the model notes, the fingerprint, and what is refused."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.build import kv_layout
from engine.handoff import (
    KvLayout,
    LayoutError,
    SequenceImage,
    weights_revision,
    window_replay_tokens,
)
from engine.model.config import ModelConfig
from tests.fakes.checkpoints import config_of
from tests.fakes.models import GOLDEN, TINY
from tests.fakes.released import V4_FLASH, V4_PRO

BASE, HCA8 = GOLDEN / "v4_base", GOLDEN / "v4_hca8"


def layout(config: ModelConfig, block_tokens: int = 128, **changes: Any) -> KvLayout:
    values = {"quantisers": False, "weights_revision": "r", **changes}
    return KvLayout(config, block_tokens=block_tokens, **values)


@pytest.mark.parametrize(
    ("config", "bytes_per_token"), [(V4_FLASH, 6880), (V4_PRO, 9848)], ids=["flash", "pro"]
)
def test_a_block_has_the_bytes_of_the_notes(config: ModelConfig, bytes_per_token: int) -> None:
    """The notes give the sizes in bfloat16; here an element has four bytes."""
    for block_tokens in (128, 256):
        found = layout(config, block_tokens)
        assert found.block_bytes == 2 * bytes_per_token * block_tokens
        assert found.partial_bytes(block_tokens - 1) < found.block_bytes
        assert found.partial_bytes(5 * block_tokens) == 0


@pytest.mark.parametrize("config", [V4_FLASH, V4_PRO], ids=["flash", "pro"])
@pytest.mark.parametrize("n", [128, 129, 130, 131, 132, 255, 256, 383, 384, 1000])
def test_state_of_released_models_has_the_bytes_of_the_notes(config: ModelConfig, n: int) -> None:
    csa = sum(layer.ratio == 4 for layer in config.layers)
    hca = sum(layer.ratio == 128 for layer in config.layers)
    windows = config.num_layers * 127 * 512 * 4
    previous = 4 * (512 + 128) * 2 * 4
    pending = (n % 4) * (1024 + 256) * 2 * 4
    assert previous == 20 * 1024
    expected = windows + csa * (previous + pending) + hca * (n % 128) * 4 * 1024
    assert layout(config).state_bytes(n) == expected


@pytest.mark.parametrize("directory", [BASE, HCA8, TINY], ids=lambda path: path.name)
def test_sizes_at_every_length(directory: Path) -> None:
    found = kv_layout(directory, kv_quantisers="off")
    config, block = found.config, found.block_tokens
    width, index_width = config.head_dim, config.index_head_dim
    for n in range(2 * block + 3):
        rows = config.num_layers * min(n, config.sliding_window - 1) * width
        entries = 0
        for layer in config.layers:
            if layer.ratio == 4:
                both = width + index_width
                rows += (4 if n >= 4 else 0) * 2 * both + (n % 4) * 4 * both
                entries += n % block // 4 * both
            elif layer.ratio:
                rows += n % layer.ratio * 2 * width
                entries += n % block // layer.ratio * width
        assert found.state_bytes(n) == 4 * rows, n
        assert found.partial_bytes(n) == 4 * entries, n
        assert found.num_blocks(n) == n // block


def test_parts_of_a_block_do_not_overlap_and_fill_it() -> None:
    for config in (V4_FLASH, ModelConfig.load(HCA8), ModelConfig.load(TINY)):
        found = layout(config)
        used = []
        for part in found.slices:
            begin = part.entry_row * config.head_dim
            used.append((begin, begin + part.entries * config.head_dim))
            if part.index_row is not None:
                begin = part.index_row * config.index_head_dim
                used.append((begin, begin + part.entries * config.index_head_dim))
        used.sort()
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(used))
        assert used[-1][1] <= found.block_elements
        assert found.block_bytes == 4 * found.block_elements
        padding = found.block_elements - sum(end - begin for begin, end in used)
        assert padding < 2 * config.head_dim * config.index_head_dim


@pytest.mark.parametrize(
    ("block_tokens", "proposed"), [(0, 128), (-128, 128), (64, 128), (200, 128), (300, 256)]
)
def test_block_tokens_that_do_not_divide_are_refused_with_a_way_out(
    block_tokens: int, proposed: int
) -> None:
    with pytest.raises(LayoutError) as caught:
        layout(V4_FLASH, block_tokens)
    message = str(caught.value)
    assert f"block_tokens is {block_tokens}" in message
    assert "multiple of 128" in message
    assert message.endswith(f"set block_tokens to {proposed}")
    assert layout(V4_FLASH, proposed).block_tokens == proposed


def base_config(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**config_of(HCA8), **changes})


FINGERPRINT = layout(base_config()).fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 4, "compress_ratios": [0, 4, 8, 4]},
        {"compress_ratios": [0, 4, 8, 4, 16]},
        {"compress_ratios": [0, 4, 8, 8, 4]},
        {"head_dim": 64},
        {"index_head_dim": 32},
        {"sliding_window": 32},
        {"qk_rope_head_dim": 4},
        {"rope_theta": 10000.5},
        {"compress_rope_theta": 160001},
        {"rope_scaling": None},
        {"rope_scaling": {**config_of(HCA8)["rope_scaling"], "factor": 8}},
        {"rope_scaling": {**config_of(HCA8)["rope_scaling"], "beta_fast": 16}},
        {"rope_scaling": {**config_of(HCA8)["rope_scaling"], "beta_slow": 2}},
        {
            "rope_scaling": {
                **config_of(HCA8)["rope_scaling"],
                "original_max_position_embeddings": 512,
            }
        },
    ],
    ids=str,
)
def test_the_fingerprint_changes_with_the_model(changes: dict[str, Any]) -> None:
    assert layout(base_config(**changes)).fingerprint != FINGERPRINT


@pytest.mark.parametrize(
    "changes", [{"block_tokens": 256}, {"quantisers": True}, {"weights_revision": "s"}], ids=str
)
def test_the_fingerprint_changes_with_the_settings(changes: dict[str, Any]) -> None:
    assert layout(base_config(), **changes).fingerprint != FINGERPRINT


def test_the_fingerprint_changes_with_the_family_and_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = dataclasses.replace(base_config(), model_type="deepseek_v5")
    assert layout(other).fingerprint != FINGERPRINT
    monkeypatch.setattr("engine.handoff.LAYOUT_VERSION", 2)
    assert layout(base_config()).fingerprint != FINGERPRINT


def test_the_fingerprint_is_eight_bytes_of_canonical_integers_and_strings() -> None:
    found = layout(base_config())
    assert len(found.fingerprint) == 8
    assert found.fingerprint == layout(base_config()).fingerprint

    def leaves(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [leaf for item in value.values() for leaf in leaves(item)]
        if isinstance(value, list):
            return [leaf for item in value for leaf in leaves(item)]
        return [value]

    described = found.describe()
    assert {type(leaf) for leaf in leaves(described)} <= {int, str, type(None)}
    assert json.loads(json.dumps(described)) == described
    # Whoever continues an image may be another number of ranks: sizes of groups are not in it.
    assert not {"ranks", "num_ranks", "ep", "dp", "tp", "cp"} & set(described)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(BASE / name, tmp_path / name)
    return tmp_path


def test_the_revision_is_that_of_the_bytes(copied: Path) -> None:
    first = weights_revision(copied)
    assert len(first) == 32
    path = copied / "model.safetensors"
    data = bytearray(path.read_bytes())
    for place in (0, len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        assert weights_revision(copied) != first, place
    path.write_bytes(data)
    assert weights_revision(copied) == first
    assert kv_layout(copied).fingerprint == kv_layout(copied).fingerprint


def test_the_revision_covers_config_and_names(copied: Path) -> None:
    first = weights_revision(copied)
    config = copied / "config.json"
    config.write_text(config.read_text("utf-8") + " ", encoding="utf-8")
    second = weights_revision(copied)
    (copied / "model.safetensors").rename(copied / "other.safetensors")
    assert len({first, second, weights_revision(copied)}) == 3


def test_large_checkpoints_are_told_apart_by_size_and_ends(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.handoff._FULL_DIGEST_BYTES", 1000)
    monkeypatch.setattr("engine.handoff._EDGE_BYTES", 4096)
    path = copied / "model.safetensors"
    data = bytearray(path.read_bytes())
    found = [weights_revision(copied)]
    for place in (0, 4095, len(data) - 4096, len(data) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        found.append(weights_revision(copied))
    path.write_bytes(data + b"\0")
    found.append(weights_revision(copied))
    assert len(set(found)) == len(found)


def image(found: KvLayout, n: int) -> SequenceImage:
    return SequenceImage(
        num_tokens=n,
        blocks=(bytes(found.block_bytes),) * found.num_blocks(n),
        partial=bytes(found.partial_bytes(n)),
        state=bytes(found.state_bytes(n)),
    )


def test_an_image_of_the_right_sizes_passes_and_counts_its_bytes() -> None:
    found = kv_layout(HCA8)
    for n in (0, 1, 3, 4, 31, 32, 33, 70):
        good = image(found, n)
        found.check(good)
        assert good.num_bytes == (
            found.num_blocks(n) * found.block_bytes + found.partial_bytes(n) + found.state_bytes(n)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens": 71}, "image of 71 tokens: state is"),
        ({"num_tokens": 72}, "image of 72 tokens: partial block is"),
        ({"num_tokens": 96}, "image of 96 tokens: number of blocks is 2, wanted 3"),
        ({"blocks": ()}, "image of 70 tokens: number of blocks is 0, wanted 2"),
        ({"partial": b""}, "image of 70 tokens: partial block is 0, wanted"),
        ({"state": b"1234"}, "image of 70 tokens: state is 4, wanted"),
    ],
)
def test_an_image_of_a_wrong_size_is_refused(change: dict[str, Any], message: str) -> None:
    found = kv_layout(HCA8)
    with pytest.raises(LayoutError) as caught:
        found.check(dataclasses.replace(image(found, 70), **change))
    assert message in str(caught.value)


def test_a_block_of_a_wrong_size_is_refused() -> None:
    found = kv_layout(HCA8)
    good = image(found, 70)
    bad = dataclasses.replace(good, blocks=(good.blocks[0], good.blocks[1][:-4]))
    with pytest.raises(LayoutError) as caught:
        found.check(bad)
    wanted = found.block_bytes
    assert f"block 1 has {wanted - 4} bytes, wanted {wanted}" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "wanted"),
    # Layers times (window - 1): the figures of docs/decisions/0016.
    [(V4_FLASH, 43 * 127), (V4_PRO, 61 * 127), (kv_layout(HCA8).config, 5 * 15)],
)
def test_a_replay_reaches_back_through_all_layers(config: ModelConfig, wanted: int) -> None:
    assert window_replay_tokens(config) == wanted


@pytest.mark.parametrize(
    ("window", "ratios", "wanted"),
    [
        (16, [0], 15),
        (3, [0, 8], 4),
        (3, [4, 0], 4),  # the group before the cut is longer than the first window
        (3, [0, 4], 6),
        (1, [0, 8], 1),
        (1, [4], 4),
    ],
)
def test_small_windows_still_need_the_group_before_the_cut(
    window: int, ratios: list[int], wanted: int
) -> None:
    raw = config_of(HCA8)
    raw |= {"sliding_window": window, "compress_ratios": ratios, "num_hidden_layers": len(ratios)}
    assert window_replay_tokens(ModelConfig.from_dict(raw)) == wanted


def test_an_image_to_replay_has_whole_blocks_and_enough_tokens() -> None:
    found = kv_layout(HCA8)
    whole = image(found, 96)
    replayed = dataclasses.replace(whole, state=b"", replay_from=96 - found.window_replay_tokens)
    found.check(replayed)
    assert replayed.state_tokens == 21
    # On its way, as preemption keeps it.
    found.check(dataclasses.replace(whole, state=bytes(found.state_bytes(90)), replay_from=90))
    for change, message in (
        ({"replay_from": 22}, "its replay has 74 tokens, exact windows need 75"),
        ({"replay_from": 0}, "its replay begins at token 0"),
        ({"replay_from": 96}, "its replay begins at token 96"),
        ({"num_tokens": 97}, "an end that is a multiple of 32"),
        ({"state": b"1234"}, "state is 4, wanted"),
    ):
        with pytest.raises(LayoutError, match=message):
            found.check(dataclasses.replace(replayed, **change))
