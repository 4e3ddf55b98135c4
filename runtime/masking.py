"""Passwords in URLs, wherever those are shown: tables, logs, errors, settings.

More is hidden than has to be rather than less: a password whose `/` or `@` was not written as `%2F`
or `%40` ends where no parser of URLs would say so.
"""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

MASK = "***"

# A backslash may be that of a quote, in a line of JSON.
_QUERY = re.compile(
    r"""([?&][\w.-]*(?:password|passwd|secret|token)=)(?:[^&\s"'\\]|\\[^"'])+""", re.IGNORECASE
)
_IN_TEXT = re.compile(r"(://[^\s:@/?#\"']*):[^\s\"']*@")
_WHOLE = re.compile(r"(://[^:@/?#]*):.*@", re.DOTALL)


def mask_url(url: str) -> str:
    """The URL with its password replaced, up to the last `@`; a text that is none as it is."""
    return _QUERY.sub(rf"\1{MASK}", _WHOLE.sub(rf"\1:{MASK}@", url))


def mask_text(text: str) -> str:
    """The text with the passwords of all URLs in it replaced; a URL ends at a space or quote."""
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\1{MASK}", _IN_TEXT.sub(rf"\1:{MASK}@", text))


class MaskingParser(argparse.ArgumentParser):
    """Repeats no password of what it could not understand."""

    def error(self, message: str) -> NoReturn:
        """See argparse."""
        super().error(mask_text(message))
