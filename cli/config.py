"""`disagg config`: the settings of each role, with the origin of every value."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CommandError
from cli.output import show, show_json, table
from runtime.errors import ExitCode

if TYPE_CHECKING:
    from runtime.settings import Loaded, Settings

ROLES = ("balancer", "prefill", "decode")
_NOT_GIVEN = "unix:///not-given"  # stands in for the one setting without a default


def add_parser(commands: Any) -> None:  # Any: argparse does not name the type
    """Adds the subcommand."""
    parser = commands.add_parser(
        "config",
        help="show the settings in force and where each comes from",
        description="Shows the settings each role would run with, from defaults, file and "
        "environment; secrets are masked.",
        epilog="example:  DISAGG_LOG__LEVEL=debug disagg config --role decode",
        allow_abbrev=False,
    )
    parser.add_argument("--role", choices=ROLES, help="only this role (default: all)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings file, TOML or JSON")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    roles = ROLES if options.role is None else (options.role,)
    classes = {role: settings_class(role) for role in roles}
    if options.schema:
        schemas = {role: cls.model_json_schema() for role, cls in classes.items()}
        show_json(schemas[options.role] if options.role else schemas)
        return ExitCode.OK
    loaded = {role: load_role(role, options.config) for role in classes}
    if options.json:
        show_json(
            {
                role: {
                    key: {"value": value, "origin": origin}
                    for key, value, origin in _rows(settings)
                }
                for role, settings in loaded.items()
            }
        )
        return ExitCode.OK
    for number, (role, settings) in enumerate(loaded.items()):
        if number:
            show()
        show(role)
        for line in table(_rows(settings)):
            show(line)
    return ExitCode.OK


def settings_class(role: str) -> type[Settings]:
    """The settings of a role."""
    if role == "balancer":
        from balancer.config import BalancerSettings

        return BalancerSettings
    if role == "prefill":
        from prefill_service.config import PrefillSettings

        return PrefillSettings
    from decode_service.config import DecodeSettings

    return DecodeSettings


def load_role(role: str, file: Path | None) -> Loaded[Settings]:
    """The settings of a role from file and environment; a store need not be named.

    Raises:
        CommandError: They cannot be used.
    """
    from runtime.sections import foreign_to
    from runtime.settings import SettingsError, load

    cls = settings_class(role)
    foreign = foreign_to(cls)
    try:
        try:
            return load(cls, file=file, foreign_sections=foreign)
        except SettingsError as error:
            if list(error.problems) != ["store.url is required and was not given"]:
                raise
        return load(cls, flags={"store.url": _NOT_GIVEN}, file=file, foreign_sections=foreign)
    except SettingsError as error:
        raise CommandError(f"{role}: {error}", ExitCode.CONFIGURATION) from error


def _rows(settings: Loaded[Settings]) -> list[tuple[str, str, str]]:
    return [
        (key, "-", "required: --store, or a private one under `disagg up`")
        if value == _NOT_GIVEN
        else (key, value, origin)
        for key, value, origin in settings.rows()
    ]
