"""The files of the status page: by path of the HTTP face, what they hold and what they are.

They are read once, when the face is made; they hold no facts, so anybody may have them.
"""

from __future__ import annotations

from importlib.resources import files

_NAMES = {"/ui": "page.html", "/ui/page.css": "page.css", "/ui/page.js": "page.js"}
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

FILE_PATHS = frozenset(_NAMES)


def read_file(path: str) -> tuple[bytes, str]:
    """Content and content type of the file at a path of `FILE_PATHS`."""
    name = _NAMES[path]
    content = files("balancer.ui").joinpath("page", name).read_bytes()
    return content, f"{_KINDS[name.rpartition('.')[2]]}; charset=utf-8"
