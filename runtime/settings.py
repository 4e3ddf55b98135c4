"""Settings of a process: defaults, file, environment, flags; each value with its origin.

A part declares a tree of `Settings`: sections with fields that have a unit in their name and a
description. Nothing is repaired: an unknown key, a value of the wrong kind or a broken rule between
fields is an error that names the key, the value and where it came from, and ends the process with
status 2 before it does anything. This is the only module that reads the environment.

    file          store.url = "unix:///..."         (TOML or JSON; --config or DISAGG_CONFIG)
    environment   DISAGG_STORE__URL=unix:///...
    flag          --store unix:///...               (`flag` of the field, else --store-url)
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, TypeGuard, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from runtime.errors import ExitCode
from runtime.masking import MASK, MaskingParser, mask_text, mask_url

ENVIRONMENT_PREFIX = "DISAGG_"
CONFIG_VARIABLE = "DISAGG_CONFIG"


class Settings(BaseModel):
    """Base of sections and of the tree itself: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class SettingsError(Exception):
    """Settings that cannot be used; one line per problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def setting(
    default: Any = ..., *, help: str, flag: str | None = None, **rules: Any
) -> Any:  # Any: as pydantic.Field
    """A field of a section.

    Args:
        default: Value without any source; required if absent.
        help: One line for help texts, documents and the schema.
        flag: Name of the command-line flag, such as `--store`; default `--<section>-<field>`.
        rules: Bounds as pydantic's `Field` takes them (ge, le, pattern, ...).
    """
    return Field(
        default, description=help, json_schema_extra={"flag": flag} if flag else None, **rules
    )


T = TypeVar("T", bound=Settings)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """Settings in force, and where each of them came from (`default`, `file F`, ...)."""

    value: T
    origins: Mapping[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """Key, value as text with secrets masked, and origin of every setting, in order."""
        return [
            (leaf.key, _masked(_get(self.value, leaf.path)), self.origins[leaf.key])
            for leaf in leaves(type(self.value))
        ]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One settable field of a tree."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def key(self) -> str:
        """Dotted name, as in files and messages."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return ENVIRONMENT_PREFIX + "__".join(self.path).upper()

    @property
    def flag(self) -> str:
        """Name of the flag."""
        extra = self.field.json_schema_extra
        if isinstance(extra, dict) and isinstance(extra.get("flag"), str):
            return str(extra["flag"])
        return "--" + "-".join(self.path).replace("_", "-")


def leaves(settings: type[Settings]) -> Iterator[Leaf]:
    """All settable fields of a tree, in order of declaration."""

    def walk(model: type[Settings], path: tuple[str, ...]) -> Iterator[Leaf]:
        for name, field in model.model_fields.items():
            inner = field.annotation
            if _is_section(inner):
                yield from walk(inner, (*path, name))
            else:
                yield Leaf((*path, name), field)

    return walk(settings, ())


def _is_section(annotation: object) -> TypeGuard[type[Settings]]:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def load(
    settings: type[T],
    *,
    flags: Mapping[str, object] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    foreign_sections: Collection[str] = (),
) -> Loaded[T]:
    """Read all sources and return the settings in force.

    Args:
        settings: The tree.
        flags: Values by dotted key; None means that the flag was not given.
        file: Settings file; the environment variable DISAGG_CONFIG names one if absent.
        environment: Variables; those of the process if not given.
        foreign_sections: Sections of other parts that may stand in a shared file or environment.

    Raises:
        SettingsError: a source cannot be read, names an unknown key or holds a wrong value.
    """
    variables = dict(os.environ) if environment is None else environment
    by_key = {leaf.key: leaf for leaf in leaves(settings)}
    values: dict[str, object] = {}
    origins = dict.fromkeys(by_key, "default")
    problems: list[str] = []

    def take(key: str, value: object, origin: str) -> None:
        if key in by_key:
            values[key] = value
            origins[key] = origin
        elif key.split(".")[0] not in foreign_sections:
            problems.append(f"{origin}: unknown setting {key}{_suggest(key, by_key)}")

    path = file or (Path(variables[CONFIG_VARIABLE]) if variables.get(CONFIG_VARIABLE) else None)
    if path is not None:
        for key, value in _flatten(_read_file(path), by_key):
            take(key, value, f"file {path}")
    for variable, text in sorted(variables.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and variable != CONFIG_VARIABLE:
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            parsed = _from_text(text, by_key[key].field) if key in by_key else text
            take(key, parsed, f"environment {variable}")
    for key, given in (flags or {}).items():
        if given is not None:
            parsed = (
                _from_text(given, by_key[key].field)
                if isinstance(given, str) and key in by_key
                else given
            )
            take(key, parsed, f"flag {by_key[key].flag}" if key in by_key else "flag")
    if problems:
        raise SettingsError(problems)
    try:
        value = settings.model_validate(_nested(settings, values))
    except ValidationError as error:
        raise SettingsError(_explain(error, by_key, values, origins)) from error
    return Loaded(value, origins)


def variables_of(prefix: str) -> dict[str, str]:
    """The variables of the environment whose names begin so; for standards with names of their own.

    Their values are not settings of ours, so they have no origin and no flag.
    """
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


def environment_with(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process, with variables of a child that it starts."""
    return {**os.environ, **variables}


def add_flags(parser: argparse.ArgumentParser, settings: type[Settings]) -> None:
    """Add one flag per setting, and `--config FILE`; read them back with `flag_values`."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file, TOML or JSON")
    for leaf in leaves(settings):
        default = "required" if leaf.field.is_required() else f"default {leaf.field.default}"
        text = f"{leaf.field.description or leaf.key} ({default})".replace("%", "%%")
        if leaf.field.annotation is bool:
            parser.add_argument(
                leaf.flag, dest=leaf.key, action=argparse.BooleanOptionalAction, help=text
            )
        else:
            name = leaf.path[-1].upper()
            parser.add_argument(leaf.flag, dest=leaf.key, metavar=name, help=text)


def flag_values(namespace: argparse.Namespace, settings: type[Settings]) -> dict[str, object]:
    """The values of the flags of `add_flags`, by dotted key."""
    return {leaf.key: getattr(namespace, leaf.key) for leaf in leaves(settings)}


def load_process(
    settings: type[T],
    arguments: Sequence[str] | None = None,
    *,
    prog: str,
    description: str = "",
    example: str = "",
    foreign_sections: Collection[str] = (),
    environment: Mapping[str, str] | None = None,
    check: Callable[[T], object] | None = None,
) -> Loaded[T]:
    """Settings of a process from its command line, file and environment.

    `--check-config` exits 0 if all is well. Bad settings are printed to standard error, one line
    per problem, and the process exits 2.

    Args:
        example: A command line for the end of `--help`.
        check: Raises SettingsError for what only several values together, or variables of others,
            show to be wrong.
    """
    parser = MaskingParser(
        prog=prog,
        description=description,
        epilog=f"example:  {example}" if example else None,
        allow_abbrev=False,
    )
    add_flags(parser, settings)
    parser.add_argument("--check-config", action="store_true", help="check the settings and exit")
    namespace = parser.parse_args(arguments)
    try:
        loaded = load(
            settings,
            flags=flag_values(namespace, settings),
            file=namespace.config,
            environment=environment,
            foreign_sections=foreign_sections,
        )
        if check is not None:
            check(loaded.value)
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"{prog}: {mask_text(problem)}\n")
        raise SystemExit(int(ExitCode.CONFIGURATION)) from error
    if namespace.check_config:
        raise SystemExit(int(ExitCode.OK))
    return loaded


def _read_file(path: Path) -> Mapping[str, object]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SettingsError([f"file {path}: cannot be read: {error.strerror}"]) from error
    try:
        parsed = json.loads(raw) if path.suffix == ".json" else tomllib.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise SettingsError([f"file {path}: not valid {path.suffix or 'TOML'}: {error}"]) from error
    if not isinstance(parsed, dict):
        raise SettingsError([f"file {path}: a table of sections is needed at the top"])
    return parsed


def _flatten(
    table: Mapping[str, object], known: Mapping[str, Leaf], prefix: str = ""
) -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in known:
            yield from _flatten(value, known, f"{key}.")
        else:
            yield key, value


def _nested(settings: type[Settings], values: Mapping[str, object]) -> dict[str, object]:
    """Dotted keys to tables; sections without a given value are left to their defaults."""
    # A required section exists even if nothing in it was given, so that its fields are named.
    tree: dict[str, Any] = {
        name: {}
        for name, field in settings.model_fields.items()
        if field.is_required() and _is_section(field.annotation)
    }
    for leaf in leaves(settings):
        if leaf.key in values:
            table = tree
            for part in leaf.path[:-1]:
                table = table.setdefault(part, {})
            table[leaf.path[-1]] = values[leaf.key]
    return tree


# `[::1]:50051,...` is a list separated by commas; no JSON begins like it.
_IPV6_FIRST = re.compile(r"\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*\]")


def _from_text(text: str, field: FieldInfo) -> object:
    """Text of a variable or flag: lists are JSON or separated by commas, the rest is pydantic's."""
    annotation = field.annotation
    options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    kinds = {typing.get_origin(option) or option for option in options}
    if type(None) in kinds and text == "":
        return None
    if kinds & {list, tuple, set, frozenset}:
        if text.startswith("[") and not _IPV6_FIRST.match(text):
            return _json_or_text(text)
        return [part.strip() for part in text.split(",") if part.strip()]
    if dict in kinds:
        return _json_or_text(text)
    return text


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text  # pydantic refuses it with the field's own message


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _suggest(key: str, known: Collection[str]) -> str:
    close = get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(known))}"


def _explain(
    error: ValidationError,
    by_key: Mapping[str, Leaf],
    values: Mapping[str, object],
    origins: Mapping[str, str],
) -> list[str]:
    problems = []
    for entry in error.errors(include_url=False):
        path = [str(part) for part in entry["loc"]]
        key = next(
            (
                ".".join(path[:end])
                for end in range(len(path), 0, -1)
                if ".".join(path[:end]) in origins
            ),
            ".".join(path),
        )
        message = re.sub(r"^Value error, ", "", entry["msg"])
        if key not in origins:  # a rule of a section or of the whole tree
            problems.append(f"{key}: {message}" if key else message)
        elif entry["type"] == "missing":
            problems.append(f"{key} is required and was not given")
        else:
            secret = by_key[key].field.annotation is SecretStr
            shown = MASK if secret else _masked(values.get(key, entry["input"]))
            problems.append(f"{key} = {shown} ({origins[key]}): {message}")
    return problems


def _get(value: object, path: tuple[str, ...]) -> object:
    for part in path:
        value = getattr(value, part)
    return value


def _masked(value: object) -> str:
    if isinstance(value, SecretStr):
        return MASK
    return mask_url(value) if isinstance(value, str) else mask_text(str(value))
