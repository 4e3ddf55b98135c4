"""Where the bundled model is, for commands and services that are told of none."""

from pathlib import Path

MODEL = Path("models/tiny-v4")
_SOURCE_TREE = Path(__file__).resolve().parents[1]


def default_model() -> Path:
    """The bundled model below the working directory, else that of the source tree.

    A wheel brings no model; then the path below the working directory is returned all the same,
    and whoever opens it says what is missing.
    """
    bundled = _SOURCE_TREE / MODEL
    if not _is_model(MODEL) and _is_model(bundled):
        return bundled
    return MODEL


def _is_model(directory: Path) -> bool:
    return (directory / "config.json").is_file()
