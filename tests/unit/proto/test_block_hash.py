"""The chained block hash against published vectors and an independent CBOR encoder."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg import block_hash

VECTORS = json.loads(
    (Path(__file__).parents[2] / "vectors" / "hash_chain.json").read_text(encoding="utf-8")
)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)


def reference(tokens: list[int], block_tokens: int, salt: str) -> list[bytes]:
    parent = hashlib.sha256(cbor2.dumps("vllm-none-hash", canonical=True)).digest()
    names = []
    for start in range(0, len(tokens) // block_tokens * block_tokens, block_tokens):
        extra = [["cache_salt", salt]] if salt and start == 0 else None
        block = [parent, tokens[start : start + block_tokens], extra]
        parent = hashlib.sha256(cbor2.dumps(block, canonical=True)).digest()
        names.append(parent)
    return names


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_published_vectors(vector: dict) -> None:
    inputs, expected = vector["inputs"], vector["expected"]
    salt = dict(inputs["first_block_extra"] or []).get("cache_salt", "")
    names = block_hash.chain(inputs["tokens"], inputs["block_tokens"], salt=salt)
    assert expected["root"] == block_hash.ROOT.hex()
    assert [name.hex() for name in names] == [block["hash"] for block in expected["blocks"]]
    assert [str(block_hash.low64(name)) for name in names] == [
        block["low64_unsigned"] for block in expected["blocks"]
    ]


@given(tokens=TOKENS, block_tokens=st.integers(1, 40), salt=st.text(max_size=300))
def test_equals_an_independent_encoder(tokens: list[int], block_tokens: int, salt: str) -> None:
    assert block_hash.chain(tokens, block_tokens, salt=salt) == reference(
        tokens, block_tokens, salt
    )


@given(tokens=TOKENS, block_tokens=st.integers(1, 9), cut=st.integers(0, 70))
def test_a_prefix_has_a_prefix_of_the_names(tokens: list[int], block_tokens: int, cut: int) -> None:
    whole = block_hash.chain(tokens, block_tokens)
    assert (
        block_hash.chain(tokens[:cut], block_tokens)
        == whole[: min(cut, len(tokens)) // block_tokens]
    )


@given(tokens=st.lists(st.integers(0, 9), min_size=12, max_size=12), at=st.integers(0, 11))
def test_one_token_changes_every_name_behind_it(tokens: list[int], at: int) -> None:
    other = [*tokens]
    other[at] += 1
    equal = [
        a == b for a, b in zip(block_hash.chain(tokens, 4), block_hash.chain(other, 4), strict=True)
    ]
    assert equal == [block < at // 4 for block in range(3)]


def test_names_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    program = "from disagg import block_hash; print(block_hash.chain(range(8), 4)[-1].hex())"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(block_hash.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {block_hash.chain(range(8), 4)[-1].hex() + "\n"}


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_id_out_of_range_is_refused(token: int) -> None:
    with pytest.raises(ValueError, match=f"token id {token} is not in"):
        block_hash.chain([0, token], 2)


def test_a_block_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="block_tokens is 0"):
        block_hash.chain([1], 0)


def test_a_parent_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="parent has 3 bytes"):
        block_hash.extend(b"abc", [1])
