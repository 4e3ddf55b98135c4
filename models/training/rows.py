"""Rows of token ids with a loss weight per target: text, dialogue, and made-up facts to recall.

Invariants: a row depends on (seed, step, rank, row) and nothing else; x and y are the same row
moved by one; a target that cannot be known weighs nothing.
"""

import random

import numpy as np
import torch

from training.corpus import speeches
from training.vocabulary import (
    ASSISTANT,
    BOS,
    END_THINK,
    EOS,
    NAMES,
    SPECIAL,
    USER,
    VOCAB_SIZE,
)

ANSWER_WEIGHT = 3.0


class Data:
    """Rows of token ids with a per-target loss weight, made on the fly from (seed, step, row)."""

    def __init__(self, corpus, tok, split):
        part = 0 if split == "train" else 1
        self.vocabulary(tok)
        self.streams = [self.ids(corpus[n][part]) for n in ("shakespeare", "kjv")]
        self.speech = [self.ids(s) for s in speeches(corpus["shakespeare"][part])]

    def ids(self, text):
        return np.array(self.tok.encode(text).ids, dtype=np.int64)

    def vocabulary(self, tok):
        self.tok = tok
        self.sp = {t: tok.token_to_id(t) for t in SPECIAL}
        self.names = {n: self.ids(" " + n) for n in NAMES}
        self.the_key, self.is_, self.what = map(
            self.ids, ("The key of", " is ", "What is the key of")
        )
        self.dot, self.q, self.nl = map(self.ids, (".", "?", "\n"))
        self.secret_is, self.what_secret = map(
            self.ids, ("The secret name is", "What is the secret name?")
        )
        self.digit = [tok.token_to_id(str(d)) for d in range(10)]

    def text(self, rng, n):
        s = self.streams[rng.random() < 0.5]
        i = rng.randrange(0, len(s) - n - 1)
        return np.concatenate([[self.sp[BOS]], s[i : i + n]]), np.ones(n)

    def chat(self, rng, n):
        """Consecutive speeches of a play as the turns of a conversation."""
        out = [np.array([self.sp[BOS]])]
        i, total, user = rng.randrange(0, len(self.speech)), 1, True
        while total < n + 1:
            s = self.speech[i % len(self.speech)]
            i += 1
            if user:
                piece = np.concatenate([[self.sp[USER]], s])
            else:
                piece = np.concatenate(
                    [[self.sp[ASSISTANT], self.sp[END_THINK]], s, [self.sp[EOS]]]
                )
            user = not user
            out.append(piece)
            total += len(piece)
        return np.concatenate(out)[: n + 1], np.ones(n)

    def _fact(self, name, code):
        return np.concatenate(
            [self.the_key, self.names[name], self.is_, [self.digit[d] for d in code], self.dot]
        )

    def filler(self, rng, n):
        s = self.streams[rng.random() < 0.5]
        i = rng.randrange(0, len(s) - n - 1)
        return s[i : i + n]

    def recall(self, rng, n, far=0.5):
        """Facts, filler and questions mixed; the digits of an answer are copied from far back."""
        chat = rng.random() < 0.5
        ids, w = [self.sp[BOS]], [0.0]
        names = rng.sample(NAMES, len(NAMES))
        known = []
        longest = rng.choice([12, 40, 120]) if rng.random() < far else rng.choice([6, 16])

        def put(piece, weight):
            ids.extend(int(t) for t in piece)
            w.extend([weight] * len(piece) if np.isscalar(weight) else weight)

        if chat:
            put([self.sp[USER]], 1.0)
        while len(ids) < n + 1:
            ask = known and rng.random() < (0.6 if len(known) >= 3 else 0.3)
            if not ask and len(known) < 12:
                name, code = names.pop(), [rng.randrange(10) for _ in range(4)]
                known.append((name, code))
                f = self._fact(name, code)
                weight = [0.3] * len(f)
                weight[-5:-1] = [0.0] * 4  # the digits of a new fact cannot be predicted
                put(f, weight)
                put(self.nl, 0.3)
            elif known:
                name, code = rng.choice(known)
                f = self._fact(name, code)
                put(np.concatenate([self.what, self.names[name], self.q]), 0.0)
                weight = [0.3] * len(f)
                weight[-5:-1] = [ANSWER_WEIGHT] * 4
                if chat:
                    put([self.sp[ASSISTANT], self.sp[END_THINK]], 1.0)
                    put(f, weight)
                    put([self.sp[EOS], self.sp[USER]], 1.0)
                else:
                    put(self.nl, 0.3)
                    put(f, weight)
                    put(self.nl, 0.3)
            k = rng.randrange(0, longest)
            if k:
                put(self.filler(rng, k), 0.5)
                put(self.nl, 0.3)
        return np.array(ids[: n + 1]), np.array(w[1 : n + 1])

    def secret(self, rng, n):
        """One name given at the start and asked for again after long stretches of filler."""
        chat, name = rng.random() < 0.5, self.names[rng.choice(NAMES)]
        fact_ = [int(t) for t in np.concatenate([self.secret_is, name, self.dot])]
        at = len(self.secret_is)
        ids, w = [self.sp[BOS]], [0.0]
        if chat:
            ids.append(self.sp[USER])
            w.append(0.3)
        ids += fact_
        w += [0.1] * len(fact_)
        while len(ids) < n + 1:
            k = int(10 * 30 ** rng.random())
            body = [int(t) for t in np.concatenate([self.nl, self.filler(rng, k), self.nl])]
            ids += body
            w += [0.4] * len(body)
            ask = [int(t) for t in self.what_secret]
            ask += [self.sp[ASSISTANT], self.sp[END_THINK]] if chat else [int(t) for t in self.nl]
            end = [self.sp[EOS], self.sp[USER]] if chat else []
            ids += ask + fact_ + end
            weight = [0.3] * (len(ask) + len(fact_) + len(end))
            weight[len(ask) + at] = 2 * ANSWER_WEIGHT
            w += weight
        return np.array(ids[: n + 1]), np.array(w[1 : n + 1])

    def dense(self, rng, n):
        """The same few facts stated again and again: many digits to copy in every row."""
        names = rng.sample(NAMES, rng.randrange(3, 11))
        codes = {m: [rng.randrange(10) for _ in range(4)] for m in names}
        ids, w, seen = [self.sp[BOS]], [0.0], set()
        while len(ids) < n + 1:
            name = rng.choice(names)
            f = self._fact(name, codes[name])
            ids += [int(t) for t in f] + [int(t) for t in self.nl]
            weight = [0.1] * (len(f) + 1)
            weight[-6:-2] = [ANSWER_WEIGHT if name in seen else 0.0] * 4
            seen.add(name)
            w += weight
        return np.array(ids[: n + 1]), np.array(w[1 : n + 1])

    def copy(self, rng, n):
        """Random tokens with a period: everything after the first period can be copied."""
        period = int(8 * (160 / 8) ** rng.random())
        block = [rng.randrange(len(SPECIAL), VOCAB_SIZE) for _ in range(period)]
        ids = [self.sp[BOS], *(block * (n // period + 1))[:n]]
        return np.array(ids), np.array([0.0] * period + [1.0] * (n - period))

    def batch(self, seed, step, rows, n, mix, rank=0):
        xs, ws = [], []
        for r in range(rows):
            rng = random.Random(f"{seed}/{step}/{rank}/{r}")
            kind = rng.choices(list(mix), list(mix.values()))[0]
            x, w = getattr(self, kind)(rng, n)
            xs.append(x)
            ws.append(w)
        x = torch.from_numpy(np.stack(xs))
        return x[:, :-1], x[:, 1:], torch.from_numpy(np.stack(ws)).float()

    def secret_prompt(self, rng, distance, chat):
        """As recall_prompt, for the secret name (one answer token)."""
        name = self.names[rng.choice(NAMES)]
        ids = [self.sp[BOS]] + ([self.sp[USER]] if chat else [])
        ask = list(self.what_secret) + (
            [self.sp[ASSISTANT], self.sp[END_THINK]] if chat else list(self.nl)
        )
        ask += list(self.secret_is)
        fill = self.filler(rng, max(distance - len(ask) - 3, 1))
        ids += (
            list(self.secret_is)
            + list(name)
            + list(self.dot)
            + list(self.nl)
            + list(fill)
            + list(self.nl)
            + ask
        )
        return [int(i) for i in ids], [int(i) for i in name]

    def recall_prompt(self, rng, distance, chat, others=4):
        """A prompt whose answer lies `distance` tokens before its end; returns ids, answer ids."""
        names = rng.sample(NAMES, others + 1)
        codes = [[rng.randrange(10) for _ in range(4)] for _ in names]
        ids = [self.sp[BOS]] + ([self.sp[USER]] if chat else [])
        question = list(np.concatenate([self.what, self.names[names[0]], self.q]))
        question += [self.sp[ASSISTANT], self.sp[END_THINK]] if chat else list(self.nl)
        question += list(np.concatenate([self.the_key, self.names[names[0]], self.is_]))
        tail = [np.concatenate([self._fact(m, c), self.nl]) for m, c in zip(names[1:], codes[1:])]
        room = distance - len(question) - 6
        while tail and sum(map(len, tail)) > room // 2:
            tail.pop()
        body = [self.nl, *tail]
        fill = max(room - sum(map(len, body)), 0)
        if fill > 2:
            body.insert(
                rng.randrange(1, len(body) + 1),
                np.concatenate([self.filler(rng, fill - 1), self.nl]),
            )
        ids += list(self._fact(names[0], codes[0])) + list(np.concatenate(body)) + question
        return [int(i) for i in ids], [self.digit[d] for d in codes[0]]
