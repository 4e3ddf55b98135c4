"""The two texts of the training data, each with its end held out.

Invariant: both files are read whole, and a cut is at an empty line.
"""

import re
from pathlib import Path


def load_corpus(shakespeare_path, kjv_path, held_out_chars=(40_000, 40_000)):
    """Return {name: (train_text, held_out_text)}; the held-out part is the end of each text."""
    play = Path(shakespeare_path).read_text(encoding="utf-8").strip() + "\n"
    verses, chapter = [], None
    for line in Path(kjv_path).read_text(encoding="utf-8").split("\n"):
        m = re.match(r"^(\S+?\d+):\d+\s+(.*\S)\s*$", line)
        if not m:
            continue
        if chapter is not None and m.group(1) != chapter:
            verses.append("")
        chapter = m.group(1)
        verses.append(m.group(2))
    bible = "\n".join(verses) + "\n"
    out = {}
    for name, text, n in (
        ("shakespeare", play, held_out_chars[0]),
        ("kjv", bible, held_out_chars[1]),
    ):
        cut = text.index("\n\n", len(text) - n) + 2
        out[name] = (text[:cut], text[cut:])
    return out


def speeches(play):
    """The spoken parts, in order, without the speaker's name."""
    parts = []
    for block in play.split("\n\n"):
        head, _, body = block.partition("\n")
        if head.endswith(":") and body:
            parts.append(body.strip())
    return parts
