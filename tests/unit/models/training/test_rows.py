"""Rows depend on seed, step, rank and row; an answer was stated before it is asked for."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from training.rows import ANSWER_WEIGHT, Data

BUNDLED = Path(__file__).parents[4] / "models" / "tiny-v4"
KINDS = ["text", "chat", "recall", "secret", "dense", "copy"]
LENGTH = 256


@pytest.fixture(scope="module")
def data() -> Data:
    plays, bible = (BUNDLED / "heldout.txt").read_text(encoding="utf-8").split("\n\n=====\n\n")
    corpus = {"shakespeare": (plays, plays), "kjv": (bible, bible)}
    return Data(corpus, Tokenizer.from_file(str(BUNDLED / "tokenizer.json")), "train")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_a_token_more_than_targets(data: Data, kind: str) -> None:
    for seed in range(10):
        ids, weights = getattr(data, kind)(random.Random(seed), LENGTH)
        assert (len(ids), len(weights)) == (LENGTH + 1, LENGTH)
        assert ids[0] == data.sp["<｜begin▁of▁sentence｜>"]
        assert min(ids) >= 0
        assert max(ids) < data.tok.get_vocab_size()
        assert min(weights) >= 0
        assert max(weights) > 0


def test_a_batch_is_its_rows_moved_by_one_and_replays(data: Data) -> None:
    mix = {"text": 0.5, "recall": 0.5}
    x, y, weights = data.batch(1, 7, 3, 64, mix)
    assert x.shape == y.shape == weights.shape == (3, 64)
    assert (x[:, 1:] == y[:, :-1]).all()
    again = data.batch(1, 7, 3, 64, mix)
    assert all((one == other).all() for one, other in zip((x, y, weights), again, strict=True))
    for other in (data.batch(2, 7, 3, 64, mix), data.batch(1, 8, 3, 64, mix)):
        assert (other[0] != x).any()
    assert (data.batch(1, 7, 3, 64, mix, rank=1)[0] != x).any()


@pytest.mark.parametrize("kind", ["recall", "dense"])
def test_the_digits_of_an_answer_were_stated_before(data: Data, kind: str) -> None:
    num_answers = 0
    for seed in range(10):
        ids, weights = getattr(data, kind)(random.Random(seed), LENGTH)
        answers = 1 + np.flatnonzero(weights == ANSWER_WEIGHT)
        # The first digit of each whole answer; what lies before it names whose key it is.
        for first in answers[:-3]:
            if not all(first + i in answers for i in range(4)) or first - 1 in answers:
                continue
            asked = ids[first - 4 : first + 4].tolist()
            before = ids[: first - 1].tolist()
            assert any(before[i : i + 8] == asked for i in range(len(before) - 7))
            num_answers += 1
    assert num_answers > 10


@pytest.mark.parametrize("distance", [60, 200])
@pytest.mark.parametrize("chat", [False, True])
def test_the_answer_of_a_prompt_lies_as_far_back_as_asked(
    data: Data, distance: int, chat: bool
) -> None:
    ids, answer = data.recall_prompt(random.Random(1), distance, chat)
    starts = [i for i in range(len(ids) - 3) if ids[i : i + 4] == answer]
    assert starts
    assert abs(len(ids) - starts[0] - distance) <= 4
