"""The bundled tokenizer is one that `train_tokenizer` makes: special tokens first, digits alone."""

from pathlib import Path

from tokenizers import Tokenizer
from training.vocabulary import NAMES, SPECIAL, VOCAB_SIZE, fact

BUNDLED = Path(__file__).parents[4] / "models" / "tiny-v4" / "tokenizer.json"


def test_the_bundled_tokenizer_has_this_vocabulary() -> None:
    tokenizer = Tokenizer.from_file(str(BUNDLED))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == list(range(len(SPECIAL)))
    text = fact("ARIEL", "4172")
    tokens = tokenizer.encode(text).tokens
    assert [token for token in tokens if token.isdigit()] == list("4172")
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_names_differ() -> None:
    assert len(set(NAMES)) == len(NAMES)
