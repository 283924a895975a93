"""Where the files that travel with the program lie: the catalogue of instances and the published results.

In a wheel they are inside the package; in a checkout (an editable install) they are the folders of the repository.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = _PACKAGE / "packaged"
ROOT = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent

INSTANCES_YAML = ROOT / "configs" / "instances.yaml"
PUBLISHED_RESULTS = ROOT / "results" / "published"
PREDICTION_ERRORS_JSON = ROOT / "configs" / "prediction-errors.json"
