"""Texts are cut at empty lines, verses lose their numbers, speeches their speakers."""

from pathlib import Path

from training.corpus import load_corpus, speeches

PLAY = "ROMEO:\nFirst words.\n\nJULIET:\nSecond words,\nand more.\n\nNURSE:\nThird words.\n"
BIBLE = "Ge1:1 In the beginning.\nGe1:2 And then.\nnot a verse\nGe2:1 Thus.\nEx1:1 Now these.\n"


def test_the_end_of_each_text_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "play").write_text(PLAY, encoding="utf-8")
    (tmp_path / "bible").write_text(BIBLE, encoding="utf-8")
    found = load_corpus(tmp_path / "play", tmp_path / "bible", held_out_chars=(30, 14))
    assert found["shakespeare"][0] + found["shakespeare"][1] == PLAY
    assert found["shakespeare"][1] == "NURSE:\nThird words.\n"
    bible = "In the beginning.\nAnd then.\n\nThus.\n\nNow these.\n"
    assert found["kjv"] == (bible[: bible.index("Now")], "Now these.\n")


def test_speeches_are_what_is_said() -> None:
    assert speeches(PLAY) == ["First words.", "Second words,\nand more.", "Third words."]
    assert speeches("no colon\nbody\n\nNOBODY:\n") == []
