"""Writes the pages of `docs` that follow from the code, or checks them.

python -m charts.reference            write
python -m charts.reference --check    exit 1 if a committed page differs from a fresh one
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from charts import metrics_page, settings_page

DOCS = Path(__file__).resolve().parents[1] / "docs"


def files() -> dict[Path, str]:
    """What is generated, and its content."""
    return {
        DOCS / "settings.md": settings_page.page(),
        DOCS / "metrics.md": metrics_page.page(),
    }


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="reference", description="Pages that follow from code.")
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    check = parser.parse_args(arguments).check
    is_stale = False
    for path, content in files().items():
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        is_stale = True
        if not check:
            path.write_text(content, encoding="utf-8")
        what = "differs from a fresh one; run `make chart`" if check else "written"
        sys.stdout.write(f"docs/{path.name}: {what}\n")
    return int(check and is_stale)


if __name__ == "__main__":
    sys.exit(main())
