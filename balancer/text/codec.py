"""Prompts to token ids, and token ids to text: what one model's tokenizer says.

Prompts: a conversation goes through the chat template of the model, or through `encoding` where
the model's family has none; plain text is encoded as it is. Special tokens may be written out in
both (`<｜User｜>`). Where the model wants all prompts to start with its begin-of-sentence token
(its chat template writes it, `add_bos_token` is set, or the tokenizer adds it by itself), plain
text that does not start with it gets it in front, once; text that has it is not given a second.
Token ids from a caller are never touched.

Answers: token ids become text piece by piece. A piece never holds half of a character: bytes wait
until their character is complete, and a character that never completes becomes U+FFFD at the end.
The pieces joined are exactly what decoding all ids at once gives. Special tokens have no text.

A model directory without tokenizer.json is served for callers that send and read token ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from balancer.encoding.deepseek_v4 import DSML, FORMS, Form, missing_token, render
from balancer.encoding.turns import ChatTurn
from balancer.text.files import (
    compile_template,
    load_tokenizer,
    read_json,
    template_text,
    token_text,
)
from balancer.text.pieces import (
    ByteLevelText,
    IncrementalText,
    NoText,
    WindowText,
    bytes_of_tokens,
    is_byte_level,
)
from balancer.text.template import ChatTemplate, check_turns
from balancer.text.terms import (
    ModelCard,
    ModelFilesError,
    TextError,
    ThinkingMarks,
)

_THINKING = ("<think>", "</think>")


class TextCodec:
    """Encoder and decoder of one model.

    Args:
        directory: Model directory; config.json is needed, the tokenizer files are not.
        name: Name the model is served under; empty: the directory's name.

    Raises:
        ModelFilesError: A file is missing or broken.
    """

    def __init__(self, directory: Path, *, name: str = "") -> None:
        config = read_json(directory / "config.json", required=True)
        config = config.get("text_config", config)
        try:
            self.card = ModelCard(
                name=name or directory.resolve().name,
                vocab_size=int(config["vocab_size"]),
                max_model_len=int(config["max_position_embeddings"]),
            )
        except KeyError as error:
            raise ModelFilesError(f"{directory / 'config.json'} has no {error.args[0]}") from error
        self._model_type = str(config.get("model_type", ""))
        settings = read_json(directory / "tokenizer_config.json", required=False)
        self._specials = {key: token_text(settings.get(key)) for key in ("bos_token", "eos_token")}
        program = compile_template(settings.get("chat_template"), directory)
        self._template = (
            None
            if program is None
            else ChatTemplate(program, template_text(settings), self._specials)
        )
        self._tokenizer = load_tokenizer(directory / "tokenizer.json")
        self._bos_id = self._find_bos(settings)
        self.thinking_marks = _thinking_marks(self._tokenizer)
        self._token_bytes: list[bytes] | None = None

    @property
    def has_text(self) -> bool:
        """Whether the model came with a tokenizer."""
        return self._tokenizer is not None

    def encode_text(self, text: str, field: str = "text") -> list[int]:
        """Token ids of a plain prompt; see the module for the begin-of-sentence token.

        Raises:
            TextError: The text is empty or the model has no tokenizer.
        """
        if not text:
            raise TextError(field, "the prompt is empty; send at least one character")
        ids: list[int] = self._need_tokenizer(field).encode(text, add_special_tokens=False).ids
        if self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def encode_chat(
        self,
        turns: Sequence[ChatTurn],
        *,
        thinking: bool | None = None,
        effort: str = "",
        tools: Sequence[str] = (),
        drop_thinking: bool = True,
    ) -> list[int]:
        """Token ids of a conversation that the model should answer.

        Args:
            thinking: Whether the model should think first; None leaves it to its template.
            effort: How much; empty leaves it to the template.
            tools: Functions that the model may call, as JSON objects.
            drop_thinking: Leave out what was thought in earlier turns, where the form has a choice.

        Raises:
            TextError: The conversation cannot be encoded, or the model knows no thinking or no
                tools and they were asked for; the field says what.
        """
        check_turns(turns)
        if self._template is None:
            prompt = self._coded(
                turns,
                thinking=bool(thinking),
                effort=effort,
                tools=tools,
                drop_thinking=drop_thinking,
            )
        else:
            prompt = self._template.render(turns, thinking=thinking, effort=effort, tools=tools)
        return self.encode_text(prompt, "chat")

    @property
    def form(self) -> Form | None:
        """The form of conversations where code builds them; None with a template, or without."""
        return None if self._template is not None else FORMS.get(self._model_type)

    def _coded(
        self,
        turns: Sequence[ChatTurn],
        *,
        thinking: bool,
        effort: str,
        tools: Sequence[str],
        drop_thinking: bool,
    ) -> str:
        """The prompt of a model whose conversations are built by code."""
        form = self.form
        if form is None or self._tokenizer is None:
            raise TextError("chat", "the model has no chat template; send text or token_ids")
        has_tools = bool(tools) or any(turn.tool_calls for turn in turns)
        lacking = missing_token(form, self._tokenizer.token_to_id, has_tools=has_tools)
        if lacking is not None:
            if lacking == DSML:
                raise TextError(
                    "chat.tools", f"the vocabulary of this model has no {DSML}; leave tools out"
                )
            raise TextError(
                "chat",
                f"the model has no chat template, and its vocabulary no {lacking} to do without; "
                "send text or token_ids",
            )
        if thinking and form.effort_text(effort) is None:
            numbers = ", or a number from 1 to 100" if form.is_numbered else ""
            raise TextError(
                "chat.reasoning_effort",
                f"{effort!r} is none of this model; send low, high or max{numbers}",
            )
        return render(
            form,
            turns,
            bos=self._specials["bos_token"],
            eos=self._specials["eos_token"],
            thinking=thinking,
            effort=effort,
            tools=tools,
            drop_thinking=drop_thinking,
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out.

        Raises:
            TextError: An id outside the vocabulary, or no tokenizer.
        """
        self.check_ids(token_ids)
        tokenizer = self._need_tokenizer("token_ids")
        text: str = tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, special tokens by their name; empty without a tokenizer."""
        if self._tokenizer is None:
            return b""
        table = self._byte_table() if is_byte_level(self._tokenizer) else None
        if table is not None and token_id < len(table) and table[token_id]:
            return table[token_id]
        if table is None and (text := self._tokenizer.decode([token_id])):
            return bytes(text, "utf-8")
        return (self._tokenizer.id_to_token(token_id) or "").encode("utf-8")

    def check_ids(self, token_ids: Sequence[int], field: str = "token_ids") -> None:
        """Raises TextError unless all ids are inside the vocabulary."""
        size = self.card.vocab_size
        if token_ids and max(token_ids) >= size:
            index = next(i for i, token_id in enumerate(token_ids) if token_id >= size)
            raise TextError(
                f"{field}[{index}]",
                f"token id {token_ids[index]} is outside the vocabulary; ids are in [0, {size})",
            )

    def incremental(self) -> IncrementalText:
        """A fresh decoder for one answer; without a tokenizer it yields no text."""
        if self._tokenizer is None:
            return NoText()
        if is_byte_level(self._tokenizer):
            return ByteLevelText(self._byte_table())
        return WindowText(self._tokenizer)

    def _byte_table(self) -> list[bytes]:
        if self._token_bytes is None:
            self._token_bytes = bytes_of_tokens(self._need_tokenizer("token_ids"))
        return self._token_bytes

    def _need_tokenizer(self, field: str) -> tokenizers.Tokenizer:
        if self._tokenizer is None:
            raise TextError(
                field, f"model {self.card.name!r} came without tokenizer.json; send token_ids"
            )
        return self._tokenizer

    def _find_bos(self, settings: dict[str, Any]) -> int | None:
        """Id of the token every prompt starts with; None if the model asks for none."""
        if self._tokenizer is None or not self._specials["bos_token"]:
            return None
        bos_id: int | None = self._tokenizer.token_to_id(self._specials["bos_token"])
        by_settings = settings.get("add_bos_token") or "bos_token" in template_text(settings)
        by_tokenizer = self._tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos_id]
        return bos_id if by_settings or by_tokenizer else None


def _thinking_marks(tokenizer: tokenizers.Tokenizer | None) -> ThinkingMarks | None:
    if tokenizer is None:
        return None
    begin_id, end_id = (tokenizer.token_to_id(text) for text in _THINKING)
    if begin_id is None or end_id is None:
        return None
    added = tokenizer.get_added_tokens_decoder().get(end_id)
    is_special = added is not None and added.special
    return ThinkingMarks(
        begin_id=begin_id, end_id=end_id, end_text="" if is_special else _THINKING[1]
    )
