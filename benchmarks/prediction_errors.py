"""What predictions take as the model's error, computed from the committed records: `make prediction-errors`.

Writes configs/prediction-errors.json, which travels with the program, and the table in docs/prediction.md.
"""

import sys
from pathlib import Path

from tables import printed, rewrite

from fp8bench.schema.files import PREDICTION_ERRORS_JSON, ROOT

PAGE = ROOT / "docs" / "prediction.md"


def of_records_alone(kept: Path) -> str:
    """The cases and pairs, while the program keeps none of earlier records. The file is as before, whatever happens."""
    before = kept.read_text()
    kept.write_text('{"cases": []}')
    try:
        return printed("predict --check", "json") + "\n"
    finally:
        kept.write_text(before)


def main(page: Path = PAGE, kept: Path = PREDICTION_ERRORS_JSON) -> None:
    """Write both. The records are those of the current folder."""
    kept.write_text(of_records_alone(kept))
    print(f"written: {kept}")
    count = rewrite(page)
    if count != 1:
        sys.exit(f"{page} has {count} places for the table, not 1")


if __name__ == "__main__":
    main()
