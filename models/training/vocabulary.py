"""The words of tiny-v4: special tokens, chat template, names in made-up facts, the tokenizer."""

import random

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT, THINK, END_THINK = "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"
SPECIAL = [BOS, EOS, PAD, USER, ASSISTANT, THINK, END_THINK]
VOCAB_SIZE = 2048

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}{{ '<｜Assistant｜></think>' + m['content'] + eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜></think>' }}{% endif %}"
)

NAMES = [
    "ARIEL",
    "ROMEO",
    "JULIET",
    "HAMLET",
    "OTHELLO",
    "IAGO",
    "BRUTUS",
    "CASSIUS",
    "ANTONY",
    "PORTIA",
    "VIOLA",
    "ORSINO",
    "OBERON",
    "TITANIA",
    "PUCK",
    "MACBETH",
    "BANQUO",
    "DUNCAN",
    "LEAR",
    "EDMUND",
    "EDGAR",
    "KENT",
    "REGAN",
    "GONERIL",
    "PROSPERO",
    "MIRANDA",
    "CALIBAN",
    "ROSALIND",
    "CELIA",
    "ORLANDO",
    "HENRY",
    "RICHARD",
    "WARWICK",
    "CLARENCE",
    "MOSES",
    "AARON",
    "DAVID",
    "JONATHAN",
    "SOLOMON",
    "RUTH",
    "ESTHER",
    "JACOB",
    "ESAU",
    "JOSEPH",
    "DANIEL",
    "SAMUEL",
    "ELIJAH",
    "GIDEON",
]


def fact(name, code):
    """A made-up fact, as text."""
    return f"The key of {name} is {code}."


def train_tokenizer(corpus, seed):
    """A byte-level BPE tokenizer of `VOCAB_SIZE` tokens; digits stand alone."""
    tok = Tokenizer(models.BPE(byte_fallback=False))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(
                Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]|\s+(?!\S)|\s+"), "isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    rng = random.Random(seed)
    recall = [
        fact(rng.choice(NAMES), "0") + f" What is the key of {rng.choice(NAMES)}?\n"
        for _ in range(20_000)
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    play, bible = corpus["shakespeare"][0], corpus["kjv"][0]
    tok.train_from_iterator([play, play, bible, *recall], trainer)
    assert tok.get_vocab_size() == VOCAB_SIZE
    return tok
