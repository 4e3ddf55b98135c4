"""The files of the page: there, of the right kind, and complete in themselves."""

from __future__ import annotations

import re

from balancer.ui.files import FILE_PATHS, read_file


def text(path: str) -> str:
    return read_file(path)[0].decode("utf-8")


def test_each_file_has_its_kind() -> None:
    assert {path: read_file(path)[1] for path in FILE_PATHS} == {
        "/ui": "text/html; charset=utf-8",
        "/ui/page.css": "text/css; charset=utf-8",
        "/ui/page.js": "text/javascript; charset=utf-8",
    }


def test_nothing_comes_from_elsewhere() -> None:
    for path in FILE_PATHS:
        found = set(re.findall(r"https?://[^\s\"')]+", text(path)))
        assert found <= {"http://www.w3.org/2000/svg"}, path  # a name, not an address
    assert set(re.findall(r"(?:src|href)=\"([^\"#][^\"]*)\"", text("/ui"))) == {
        "ui/page.css",
        "ui/page.js",
        next(iter(re.findall(r"data:image/svg[^\"]*", text("/ui")))),
    }


def test_text_only_ever_becomes_text() -> None:
    script = text("/ui/page.js")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script, word
    page = text("/ui")
    assert not re.findall(r"<script(?![^>]*\bsrc=)", page)
    assert not re.findall(r"\son\w+=|\sstyle=|<style", page)


def test_every_part_that_the_script_draws_is_in_the_page() -> None:
    names = set(re.findall(r"(?:\$|draw)\(\"([\w-]+)\"", text("/ui/page.js")))
    assert names
    assert names <= set(re.findall(r"\sid=\"([\w-]+)\"", text("/ui")))
