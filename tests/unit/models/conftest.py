"""The scripts under `models` are no package: they find each other beside the script that runs."""

import sys
from pathlib import Path

MODELS = Path(__file__).parents[3] / "models"
if str(MODELS) not in sys.path:
    sys.path.append(str(MODELS))
