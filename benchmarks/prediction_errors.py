"""What predictions take as the model's error, computed from the committed records: `make prediction-errors`.

Writes configs/prediction-errors.json, which travels with the program, and the table in docs/prediction.md.
"""

import re
import sys
from pathlib import Path

from typer.testing import CliRunner

from fp8bench.cli.app import program
from fp8bench.schema.files import PREDICTION_ERRORS_JSON, ROOT

PAGE = ROOT / "docs" / "prediction.md"
TABLE = re.compile(r"(<!-- made by: fp8bench predict --check -->\n).*?(\n<!-- end -->)", re.DOTALL)


def printed(form: str) -> str:
    """What `fp8bench predict --check` prints in a format. Exits where it fails."""
    words = ["predict", "--check", "--format", form, "--results-dir", str(ROOT / "results")]
    done = CliRunner().invoke(program(words), words)
    if done.exit_code:
        sys.exit(f"fp8bench {' '.join(words)}: {done.exception or done.output}")
    return done.stdout


def of_records_alone(kept: Path) -> str:
    """The cases and pairs, while the program keeps none of earlier records. The file is as before, whatever happens."""
    before = kept.read_text()
    kept.write_text('{"cases": []}')
    try:
        return printed("json")
    finally:
        kept.write_text(before)


def main(page: Path = PAGE, kept: Path = PREDICTION_ERRORS_JSON) -> None:
    """Write both."""
    kept.write_text(of_records_alone(kept))
    table = printed("markdown").strip()
    text, count = TABLE.subn(lambda found: f"{found[1]}{table}{found[2]}", page.read_text())
    if count != 1:
        sys.exit(f"{page} has {count} places for the table, not 1")
    page.write_text(text)
    print(f"written: {kept}, {page}")


if __name__ == "__main__":
    main()
