"""Make the records of published throughput anew from configs/published-throughput.yaml, and every table of
docs/scaling.md with them: `make published`.
"""

import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from fp8bench.cli.app import program
from fp8bench.scaling.published import write_all
from fp8bench.schema.files import ROOT

PAGE = ROOT / "docs" / "scaling.md"
TABLE = re.compile(r"(<!-- made by: fp8bench (.+?) -->\n).*?(\n<!-- end -->)", re.DOTALL)


def printed(command: str) -> str:
    """What a command prints as Markdown. Exits where it fails."""
    words = [*shlex.split(command), "--format", "markdown"]
    done = CliRunner().invoke(program(words), words)
    if done.exit_code:
        sys.exit(f"fp8bench {command}: {done.exception or done.output}")
    return done.stdout.strip()


def main(page: Path = PAGE, results_dir: Path = ROOT / "results") -> None:
    """Write both. Commands of the page are run where their records are: in the current folder."""
    for path in write_all(results_dir):
        print(f"written: {path}")
    page.write_text(TABLE.sub(lambda found: f"{found[1]}{printed(found[2])}{found[3]}", page.read_text()))
    print(f"written: {page}")


if __name__ == "__main__":
    main()
