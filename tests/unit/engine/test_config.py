"""Settings are refused, never repaired; messages name both fields and both values."""

from __future__ import annotations

import pytest

from engine.config import EngineRole, EngineSettings, ModelLimits, SettingsError

BAD = [
    ({"num_pages": None}, "num_pages is None and kv_memory_bytes is None"),
    ({"kv_memory_bytes": 5}, "num_pages is 9 and kv_memory_bytes is 5"),
    ({"num_pages": 1}, "num_pages is 1: give at least 2"),
    ({"block_tokens": 0}, "block_tokens is 0"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    (
        {"max_num_seqs": 8, "max_num_batched_tokens": 7},
        "max_num_batched_tokens is 7, below max_num_seqs 8",
    ),
    (
        {"max_num_seqs": 8, "num_state_slots": 8},
        "num_state_slots is 8, but max_num_seqs 8 needs one more",
    ),
    (
        {"prefill_attempt_interval": 9, "prefill_any_attempt_interval": 8},
        "prefill_any_attempt_interval is 8, below prefill_attempt_interval 9",
    ),
    ({"prefill_attempt_interval": 1}, "prefill_attempt_interval is 1: give at least 2"),
    ({"rank": 2, "num_ranks": 2}, "rank is 2 but num_ranks is 2"),
    ({"rank": -1}, "rank is -1"),
    ({"max_waiting": 0}, "max_waiting is 0"),
    ({"cp": 0}, "cp is 0: give at least 1"),
    ({"cp": 2, "role": EngineRole.DECODE}, "cp is 2 and role is decode"),
    (
        {"cp": 8, "max_num_seqs": 4, "max_num_batched_tokens": 15},
        "max_num_batched_tokens is 15, below 16, the shortest chunk of cp 8",
    ),
    ({"max_model_len": 1}, "max_model_len is 1"),
]


@pytest.mark.parametrize(("fields", "message"), BAD)
def test_contradictions_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        EngineSettings(**{"num_pages": 9, **fields})  # type: ignore[arg-type]


def test_pages_follow_from_memory_or_are_given() -> None:
    size = EngineSettings(num_pages=9, max_num_seqs=8, block_tokens=4).cache_size(1000)
    assert (size.num_pages, size.num_state_slots) == (9, 9)
    size = EngineSettings(kv_memory_bytes=10_500, num_state_slots=50, block_tokens=4).cache_size(
        1000
    )
    assert (size.num_pages, size.num_state_slots) == (10, 50)
    with pytest.raises(SettingsError, match=r"kv_memory_bytes is 1999.*take 2000 bytes"):
        EngineSettings(kv_memory_bytes=1999, block_tokens=4).cache_size(1000)
    with pytest.raises(SettingsError, match="block_tokens is not set"):
        EngineSettings(num_pages=9).cache_size(1000)


def test_pages_for_tokens_round_up() -> None:
    size = EngineSettings(num_pages=9, block_tokens=32).cache_size(1)
    assert [size.pages_for(n) for n in (0, 1, 31, 32, 33, 64)] == [0, 1, 1, 1, 2, 2]


def test_the_context_can_be_lowered_but_not_raised() -> None:
    limits = ModelLimits(vocab_size=10, max_model_len=100, eos_token_ids=(1,))
    assert EngineSettings(num_pages=9).context_tokens(limits) == 100
    assert EngineSettings(num_pages=9, max_model_len=50).context_tokens(limits) == 50
    with pytest.raises(SettingsError, match="max_model_len is 101, but the model's context is 100"):
        EngineSettings(num_pages=9, max_model_len=101).context_tokens(limits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"max_model_len": 1}, "max_model_len is 1"),
        ({"eos_token_ids": (3, 10)}, r"eos_token_ids has 10, outside the vocabulary \[0, 10\)"),
    ],
)
def test_limits_of_the_model_are_checked(fields: dict[str, object], message: str) -> None:
    good = {"vocab_size": 10, "max_model_len": 100, "eos_token_ids": (1,)}
    with pytest.raises(SettingsError, match=message):
        ModelLimits(**{**good, **fields})  # type: ignore[arg-type]
