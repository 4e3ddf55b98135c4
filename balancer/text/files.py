"""The files of a model directory that text needs, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
import tokenizers

from balancer.text.terms import ModelFilesError


def read_json(path: Path, *, required: bool) -> dict[str, Any]:
    """The object in a JSON file; empty if a file that may be absent is.

    Raises:
        ModelFilesError: It is missing or broken.
    """
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


def load_tokenizer(path: Path) -> tokenizers.Tokenizer | None:
    """The tokenizer in a file; None without one.

    Raises:
        ModelFilesError: It is broken.
    """
    if not path.is_file():
        return None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelFilesError(f"{path} is not a tokenizer: {error}") from error


def token_text(value: object) -> str:
    """Special tokens are written as text or as an object with the text in `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def template_text(settings: dict[str, Any]) -> str:
    """The chat template as it is written; empty without one."""
    template = settings.get("chat_template")
    return template if isinstance(template, str) else ""


def compile_template(template: object, directory: Path) -> jinja2.Template | None:
    """The chat template as a program; None without one.

    Raises:
        ModelFilesError: It is broken.
    """
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
