"""Text to token ids and back: the only place of the system that knows text.

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

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jinja2
import jinja2.sandbox
import tokenizers

from balancer.encoding import deepseek_v4

CHAT_ROLES = ("system", "user", "assistant")
_THINKING = ("<think>", "</think>")


class TextError(Exception):
    """Text cannot be encoded or decoded.

    Attributes:
        field: Part of the request that is to blame.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class ModelFilesError(Exception):
    """A file of the model directory is missing or broken; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What the front door needs of a model's configuration.

    Attributes:
        vocab_size: Token ids are in [0, vocab_size).
        max_model_len: Longest context in tokens.
    """

    name: str
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingMarks:
    """The tokens around what a model thinks before it answers.

    Attributes:
        end_text: What the end token leaves in the text; empty if it is a special token.
    """

    begin_id: int
    end_id: int
    end_text: str


class IncrementalText(Protocol):
    """Text of a growing sequence of token ids. Used by one request, not shared."""

    def push(self, token_id: int) -> str:
        """Returns the text that became certain with this token."""
        ...

    def finish(self) -> str:
        """Returns what was held back; nothing may be pushed after."""
        ...


class TextCodec:
    """Encoder and decoder of one model.

    Args:
        directory: Model directory; config.json is needed, the tokenizer files are not.
        name: Name the model is served under; empty: the directory's name.

    Raises:
        ModelFilesError: A file is missing or broken.
    """

    def __init__(self, directory: Path, *, name: str = "") -> None:
        config = _read_json(directory / "config.json", required=True)
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
        settings = _read_json(directory / "tokenizer_config.json", required=False)
        self._specials = {key: _token_text(settings.get(key)) for key in ("bos_token", "eos_token")}
        self._template = _compile(settings.get("chat_template"), directory)
        self._may_think = "thinking" in _template_text(settings)
        self._tokenizer = _load_tokenizer(directory / "tokenizer.json")
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
        self, turns: Sequence[ChatTurn], *, thinking: bool | None = None, effort: str = ""
    ) -> list[int]:
        """Token ids of a conversation that the model should answer.

        Args:
            thinking: Whether the model should think first; None leaves it to its template.
            effort: How much; empty leaves it to the template.

        Raises:
            TextError: No turns, an unknown role, no chat template or no tokenizer; or the template
                knows no thinking and it was asked for.
        """
        if not turns:
            raise TextError("chat.messages", "the conversation is empty; send at least one message")
        for number, turn in enumerate(turns):
            if turn.role not in CHAT_ROLES:
                raise TextError(
                    f"chat.messages[{number}].role",
                    f"role {turn.role!r} is unknown; use one of {', '.join(CHAT_ROLES)}",
                )
        if self._template is None:
            return self.encode_text(self._coded(turns, thinking=thinking, effort=effort), "chat")
        switches: dict[str, object] = {}
        if self._may_think and thinking is not None:
            switches |= {"thinking": thinking, "enable_thinking": thinking}
        if self._may_think and effort:
            switches["reasoning_effort"] = effort
        if thinking and not self._may_think:
            raise TextError(
                "chat.thinking",
                "the chat template of this model knows no thinking; leave it out or turn it off",
            )
        try:
            text = self._template.render(
                messages=[{"role": turn.role, "content": turn.content} for turn in turns],
                add_generation_prompt=True,
                **switches,
                **self._specials,
            )
        except jinja2.TemplateError as error:
            raise TextError("chat", f"the chat template refused the messages: {error}") from error
        return self.encode_text(text, "chat")

    def _coded(self, turns: Sequence[ChatTurn], *, thinking: bool | None, effort: str) -> str:
        """The prompt of a model whose conversations are built by code."""
        is_known = self._model_type == "deepseek_v4" and self._tokenizer is not None
        if not is_known or not deepseek_v4.speaks(self._need_tokenizer("chat").token_to_id):
            raise TextError("chat", "the model has no chat template; send text or token_ids")
        if thinking and effort not in deepseek_v4.EFFORTS:
            raise TextError(
                "chat.reasoning_effort",
                f"{effort!r} is not part of this version for this model; send low, or leave it out",
            )
        return deepseek_v4.render(
            [(turn.role, turn.content) for turn in turns],
            bos=self._specials["bos_token"],
            eos=self._specials["eos_token"],
            thinking=bool(thinking),
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
        table = self._byte_table() if _is_byte_level(self._tokenizer) else None
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
            return _NoText()
        if _is_byte_level(self._tokenizer):
            return _ByteLevelText(self._byte_table())
        return _WindowText(self._tokenizer)

    def _byte_table(self) -> list[bytes]:
        if self._token_bytes is None:
            self._token_bytes = _bytes_of_tokens(self._need_tokenizer("token_ids"))
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
        by_settings = settings.get("add_bos_token") or "bos_token" in _template_text(settings)
        by_tokenizer = self._tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos_id]
        return bos_id if by_settings or by_tokenizer else None


class StopStrings:
    """Finds stop strings in text that arrives in pieces.

    Text that could be the beginning of a stop string is held back, so that no part of one is ever
    handed out. The stop string that is complete first counts, of several the longest, so the result
    does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(stops, key=len, reverse=True)
        self._held = ""
        self.is_met = False

    def push(self, piece: str) -> str:
        """Returns the text that can be handed out; sets `is_met` when a stop string is complete."""
        if not self._stops:
            return piece
        text = self._held + piece
        matches = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if matches:
            self.is_met, self._held = True, ""
            _, start = min(matches)
            return text[:start]
        keep = _held_length(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Returns what was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held


class _NoText:
    def push(self, token_id: int) -> str:  # noqa: ARG002 - the protocol's name
        return ""

    def finish(self) -> str:
        return ""


class _ByteLevelText:
    """Exact for byte-level vocabularies: a token is a fixed run of bytes."""

    def __init__(self, token_bytes: list[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        # Ids past the tokenizer's vocabulary are padding of the embedding table: no text.
        known = token_id < len(self._token_bytes)
        return self._decoder.decode(self._token_bytes[token_id] if known else b"")

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowText:
    """For other vocabularies: decodes a short window and hands out what it grew by."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._done = 0  # characters of the window's text that were handed out

    def push(self, token_id: int) -> str:
        self._window.append(token_id)
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True)
        if text.endswith("\ufffd"):
            return ""
        piece = text[self._done :]
        if not piece:  # a special token is no context for the next one
            return ""
        # The last token stays as context: some decoders drop a space before the first one.
        self._window = self._window[-1:]
        self._done = len(self._tokenizer.decode(self._window, skip_special_tokens=True))
        return piece

    def finish(self) -> str:
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True)
        return text[self._done :]


def _held_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` with which some stop string begins."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        tail = text[len(text) - length :]
        if any(stop.startswith(tail) for stop in stops):
            return length
    return 0


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    # Any: the files are foreign JSON; every value taken from them is checked where it is used.
    if not path.is_file():
        if required:
            raise ModelFilesError(f"{path} does not exist; give the directory of a model")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFilesError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path} holds no JSON object")
    return value


def _load_tokenizer(path: Path) -> tokenizers.Tokenizer | None:
    if not path.is_file():
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelFilesError(f"{path} is not a tokenizer: {error}") from error


def _token_text(value: object) -> str:
    """Special tokens are written as text or as an object with the text in `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _template_text(settings: dict[str, Any]) -> str:
    template = settings.get("chat_template")
    return template if isinstance(template, str) else ""


def _compile(template: object, directory: Path) -> jinja2.Template | None:
    if not isinstance(template, str):
        return None
    # The template is a program out of a model directory: it runs without access to anything.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as error:
        where = directory / "tokenizer_config.json"
        raise ModelFilesError(f"chat_template of {where} is broken: {error}") from error


def _is_byte_level(tokenizer: tokenizers.Tokenizer) -> bool:
    return type(tokenizer.decoder).__name__ == "ByteLevel"


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


def _bytes_of_tokens(tokenizer: tokenizers.Tokenizer) -> list[bytes]:
    """Bytes of every token, by id; special tokens have none."""
    alphabet = _byte_alphabet()
    special = {
        token_id
        for token_id, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    table = []
    for token_id in range(tokenizer.get_vocab_size(with_added_tokens=True)):
        token = tokenizer.id_to_token(token_id)
        if token is None or token_id in special:
            table.append(b"")
        elif all(character in alphabet for character in token):
            table.append(bytes(alphabet[character] for character in token))
        else:  # an added token is written out, not in the byte alphabet
            table.append(token.encode("utf-8"))
    return table


def _byte_alphabet() -> dict[str, int]:
    """The printable characters that byte-level vocabularies write bytes with.

    Bytes that print stand for themselves, the others for the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet
