"""Areas: one for each group, none on another's pages."""

import pytest

from engine.parallel.areas import AreaPlan


def test_areas_of_groups_and_channels_do_not_overlap():
    plan = AreaPlan()
    plan.add("experts", ((0, 1), (2, 3)), 5000)
    plan.add("plans", ((0, 1),), 4096)
    assert plan.num_bytes == 2 * 8192 + 4096
    body = memoryview(bytearray(plan.num_bytes))
    areas = [
        plan.find(body, "experts", (0, 1)),
        plan.find(body, "experts", (2, 3)),
        plan.find(body, "plans", (0, 1)),
    ]
    assert [len(area) for area in areas] == [5000, 5000, 4096]
    for number, area in enumerate(areas, start=1):
        area[:] = bytes([number]) * len(area)
    assert [set(area) for area in areas] == [{1}, {2}, {3}]


def test_a_group_without_an_area_is_not_found():
    with pytest.raises(KeyError):
        AreaPlan().find(memoryview(b""), "plans", (0, 1))
