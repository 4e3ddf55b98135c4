"""The conversation form of DeepSeek-V4, against digests of the vendor's own encoder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from balancer.encoding.deepseek_v4 import render, speaks
from balancer.text import ChatTurn, TextCodec, TextError

MODEL = Path(__file__).parents[4] / "models" / "tiny-v4"
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
# First 16 digits of SHA-256 over UTF-8, and the length in characters, of one user turn `Hi`.
GOLDEN = {False: ("43a8b16635804295", 52), True: ("a6fa0c69a02bebdd", 51)}


@pytest.mark.parametrize("thinking", [False, True])
def test_one_turn_is_the_vendors_byte_for_byte(thinking: bool) -> None:
    text = render([("user", "Hi")], bos=BOS, eos=EOS, thinking=thinking)
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
    assert (digest, len(text)) == GOLDEN[thinking]


def test_turns_follow_each_other() -> None:
    turns = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")]
    text = render(turns, bos=BOS, eos=EOS, thinking=True)
    assert text == (
        f"{BOS}Be brief.<｜User｜>a<｜Assistant｜></think>b{EOS}<｜User｜>c<｜Assistant｜><think>"
    )


def test_it_needs_the_tokens() -> None:
    assert speaks(lambda token: 1)
    assert not speaks(lambda token: None if token == "<think>" else 1)


def without_template(tmp_path: Path, **config: object) -> TextCodec:
    for path in MODEL.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for name, changes in (
        ("tokenizer_config.json", {"chat_template": None}),
        ("config.json", config),
    ):
        path = tmp_path / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")
    return TextCodec(tmp_path)


def test_a_model_without_a_template_is_encoded_like_one_with_it(tmp_path: Path) -> None:
    turns = [
        ChatTurn(role="system", content="Be brief."),
        ChatTurn(role="user", content="Hi"),
        ChatTurn(role="assistant", content="Ho"),
        ChatTurn(role="user", content="Hm"),
    ]
    coded = without_template(tmp_path)
    assert coded.encode_chat(turns) == TextCodec(MODEL).encode_chat(turns)
    assert coded.encode_chat(turns, thinking=True, effort="low")[-1] == 5
    with pytest.raises(TextError, match="'max' is not part") as caught:
        coded.encode_chat(turns, thinking=True, effort="max")
    assert caught.value.field == "chat.reasoning_effort"


def test_other_families_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="no chat template"):
        without_template(tmp_path, model_type="other").encode_chat(
            [ChatTurn(role="user", content="Hi")]
        )
