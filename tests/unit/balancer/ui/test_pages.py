"""The paths of the status page on a whole balancer: headers, records, keys, and off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.http_face import faced

pytestmark = pytest.mark.medium
FILES = ("/ui", "/ui/page.css", "/ui/page.js")
KEYS = {"operator": "o" * 32, "tenant": "t" * 32, "staff": "s" * 32}


async def test_browsers_are_told_to_take_nothing_from_elsewhere() -> None:
    async with faced() as (_, client):
        for path in (*FILES, "/ui/state.json"):
            answer = await client.get(path)
            assert answer.status_code == 200, path
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert (await client.get("/ui/", follow_redirects=True)).url.path == "/ui"


async def test_records_by_request_id() -> None:
    async with faced() as (door, client):
        await door.generate("r1")
        [decision] = (await client.get("/ui/decisions/r1")).json()["decisions"]
        assert (decision["verdict"], decision["has_changes"]) == ("place", False)
        assert decision["prefill"]["chosen_id"] == "p0"
        [decision] = (await client.get("/ui/decisions/r1?what_if=1")).json()["decisions"]
        assert decision["has_changes"]
        assert (await client.get("/ui/decisions/never")).json()["decisions"] == []
        bad = await client.get("/ui/decisions/a%20b")
        assert (bad.status_code, bad.json()["error"]["param"]) == (400, "request_id")


@pytest.mark.parametrize(("tenant", "opens"), [("", "operator"), ("staff", "staff")])
async def test_a_tenant_does_not_see_the_requests_of_others(
    tmp_path: Path, tenant: str, opens: str
) -> None:
    path = tmp_path / "keys"
    lines = [KEYS["operator"], *(f"{name} {KEYS[name]}" for name in ("tenant", "staff"))]
    path.write_text("\n".join(lines))
    settings = {"auth": {"keys_file": str(path)}, "http": {"ui_tenant": tenant}}
    async with faced(**settings) as (_, client):
        for name in FILES:
            assert (await client.get(name)).status_code == 200
        for page in ("/ui/state.json", "/ui/decisions/r1"):
            assert (await client.get(page)).status_code == 401
            for name, key in KEYS.items():
                answer = await client.get(page, headers={"authorization": f"Bearer {key}"})
                assert answer.status_code == (200 if name == opens else 403), name
        assert "change http.ui_tenant" in answer.text or name == opens


async def test_it_can_be_switched_off() -> None:
    async with faced(http={"ui": False}) as (_, client):
        for path in (*FILES, "/ui/state.json", "/ui/decisions/r1"):
            assert (await client.get(path)).status_code == 404
