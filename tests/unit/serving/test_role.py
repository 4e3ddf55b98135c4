"""Roles: what the services say about themselves is complete and fits together."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

import decode_service.rank
import prefill_service.rank
from engine.config import EngineRole
from serving.role import Role, Service

ROLES = [prefill_service.rank.ROLE, decode_service.rank.ROLE]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_is_named_after_its_engine(role: Role[Any]) -> None:
    assert role.name == role.kind.value
    assert role.prog == f"{role.name}_service"
    module, _, function = role.entry.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_work_is_work_of_the_service(role: Role[Any]) -> None:
    assert role.work
    assert all(method.startswith(f"/{role.service}/") for method in role.work)


def test_the_roles_are_the_two_halves() -> None:
    assert {role.kind for role in ROLES} == {EngineRole.PREFILL, EngineRole.DECODE}


def test_without_housekeeping_a_tick_does_nothing() -> None:
    service = Service(register=lambda server: None, statistics=lambda: None)  # type: ignore[arg-type, return-value]
    assert asyncio.run(_tick(service)) is None


async def _tick(service: Service) -> object:
    return await service.on_tick()
