"""Token ids of an answer to text, piece by piece."""

from __future__ import annotations

import codecs
from typing import Protocol

import tokenizers


class IncrementalText(Protocol):
    """Text of a growing sequence of token ids. Used by one request, not shared."""

    def push(self, token_id: int) -> str:
        """Returns the text that became certain with this token."""
        ...

    def finish(self) -> str:
        """Returns what was held back; nothing may be pushed after."""
        ...


class NoText:
    """For models without a tokenizer."""

    def push(self, token_id: int) -> str:  # noqa: ARG002 - the protocol's name
        return ""

    def finish(self) -> str:
        return ""


class ByteLevelText:
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


class WindowText:
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


def is_byte_level(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether every token is a fixed run of bytes."""
    return type(tokenizer.decoder).__name__ == "ByteLevel"


def bytes_of_tokens(tokenizer: tokenizers.Tokenizer) -> list[bytes]:
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
