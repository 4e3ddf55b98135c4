"""The house rules that a machine can hold: direction of imports, size, names, a test per module."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = {"disagg": ROOT / "proto", "disagg_kernels": ROOT / "kernels"}
MAX_LINES = 500

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = [
    Path(entry).name for entry in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
]

# Modules without a unit test of their own, and what tests them instead.
TESTED_ELSEWHERE: dict[str, str] = {
    "balancer.text.terms": "plain data; the tests of the codec read every field",
    "engine.statistics": "plain data; the tests of the engine read every field",
}

# Pure modules: data and `now` in, decisions out.
PURE = next(
    contract["source_modules"]
    for contract in PROJECT["tool"]["importlinter"]["contracts"]
    if contract["name"].startswith("Decisions are pure")
)
IMPURE = {"asyncio", "grpc", "time", "random", "socket", "threading"}


def package_directory(package: str) -> Path:
    return SOURCE_ROOTS.get(package, ROOT) / package


def modules() -> dict[str, Path]:
    """Dotted name to file of every module of ours that a person wrote."""
    found = {}
    for package in PACKAGES:
        directory = package_directory(package)
        for path in sorted(directory.rglob("*.py")):
            if "_pb2" in path.name:
                continue
            parts = path.relative_to(directory.parent).with_suffix("").parts
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES = modules()


def imported(path: Path) -> set[str]:
    """Dotted names that a file imports anywhere, including inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.medium
def test_imports_point_down() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    paths = [str(ROOT), *map(str, SOURCE_ROOTS.values())]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; {program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_top_level_package_is_part_of_the_distribution() -> None:
    present = {
        path.parent.name
        for path in ROOT.glob("*/__init__.py")
        if path.parent.name not in {"tests", "models"}
    } | set(SOURCE_ROOTS)
    assert present == set(PACKAGES)


def test_source_roots_are_not_packages() -> None:
    for root in SOURCE_ROOTS.values():
        assert not (root / "__init__.py").exists()


def test_top_level_names_belong_to_no_other_distribution() -> None:
    owners = packages_distributions()
    # An editable install lists no top-level names, so an absent owner is ours as well.
    taken = {
        package: set(owners.get(package, ["disagg"])) - {"disagg"}
        for package in PACKAGES
        if set(owners.get(package, ["disagg"])) - {"disagg"}
    }
    assert taken == {}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_no_module_is_longer_than_the_wall(name: str) -> None:
    lines = len(MODULES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{name} has {lines} lines: split it"


def test_tests_keep_to_the_wall_too() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "tests").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


def unit_test_of(name: str) -> Path:
    """Where the unit test of a module stands: the tree, mirrored.

    An operation and its twins share one test, since twins are compared with each other.
    """
    package, *rest = name.split(".")
    if package == "disagg_kernels":
        rest = [part for part in rest if part not in {"reference", "triton"}]
    directory = {"disagg": "proto", "disagg_kernels": "kernels"}.get(package, package)
    return ROOT.joinpath("tests", "unit", directory, *rest[:-1], f"test_{rest[-1]}.py")


def needs_unit_test(name: str) -> bool:
    path = MODULES[name]
    return path.stem not in {"__init__", "__main__"} and name not in TESTED_ELSEWHERE


def test_every_module_has_a_unit_test() -> None:
    missing = sorted(
        name for name in MODULES if needs_unit_test(name) and not unit_test_of(name).exists()
    )
    assert missing == [], "write these tests, or say in TESTED_ELSEWHERE what tests the module"


def test_exceptions_from_the_rule_are_still_needed() -> None:
    for name, reason in TESTED_ELSEWHERE.items():
        assert name in MODULES, f"{name} is gone"
        assert not unit_test_of(name).exists(), f"{name} has a test now"
        assert reason


def test_packages_only_export() -> None:
    """`__init__` holds a docstring, imports, and names; no function, class or effect."""
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            body = ast.parse(path.read_text(encoding="utf-8")).body
            odd = [node for node in body if not isinstance(node, allowed)]
            assert not odd, f"{name}/__init__.py line {odd[0].lineno} does more than export"


@pytest.mark.parametrize("source", PURE)
def test_decisions_are_pure(source: str) -> None:
    covered = [name for name in MODULES if name == source or name.startswith(f"{source}.")]
    assert covered, f"{source} does not exist"
    for name in covered:
        found = imported(MODULES[name])
        impure = {item for item in found if item.split(".")[0] in IMPURE}
        assert not impure, f"{name} imports {sorted(impure)}"
        assert "runtime.clock" not in found, f"{name} knows a clock"


def test_collectives_stand_in_engine_parallel_only() -> None:
    outside = [
        name
        for name, path in MODULES.items()
        if not name.startswith("engine.parallel")
        and any(item.startswith("torch.distributed") for item in imported(path))
    ]
    assert outside == []


@pytest.mark.medium
def test_the_balancer_starts_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import balancer, balancer.__main__, client; "
        "print('torch.nn' in sys.modules)"
    )
    paths = [str(ROOT), *map(str, SOURCE_ROOTS.values())]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "False", done.stderr


def test_no_text_names_a_machine_or_a_registry() -> None:
    """Paths of somebody's machine and package hosts have no place in a repository."""
    forbidden = ("/" + "root/", "/" + "work/", "pypi" + ".org", "python" + "hosted")
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    guilty = []
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in {".safetensors", ".jsonl"} or not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        guilty += [f"{name}: {word}" for word in forbidden if word in text]
    assert guilty == []
