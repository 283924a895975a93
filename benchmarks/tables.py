"""Make every table of the README and the docs again from the records, with the command that stands above it:
`make tables`.
"""

import re
import shlex
import sys
from datetime import date
from pathlib import Path
from unittest.mock import patch

from typer.testing import CliRunner

from fp8bench.cli import selection
from fp8bench.cli.program import PROGRAM
from fp8bench.schema.files import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLE = re.compile(r"(<!-- made by: fp8bench (.+?) -->\n).*?(\n<!-- end -->)", re.DOTALL)


class Day(date):
    """The day on which tables are priced, since some prices are old on the next one. Set it when prices are updated."""

    @classmethod
    def today(cls) -> "Day":
        return cls(2026, 11, 27)


def printed(command: str, form: str = "markdown") -> str:
    """What a command prints in a format. It reads the records of the current folder. Exits if the command fails."""
    words = [*shlex.split(command), "--format", form]
    with patch.object(selection, "date", Day):
        done = CliRunner().invoke(PROGRAM, words)
    if done.exit_code:
        sys.exit(f"fp8bench {command}: {done.exception or done.output}")
    return done.stdout.strip()


def rewrite(page: Path) -> int:
    """Make the tables of a page again, and return how many it has. A page whose tables are as before is not written."""
    before = page.read_text()
    after, count = TABLE.subn(lambda found: f"{found[1]}{printed(found[2])}{found[3]}", before)
    if after != before:
        page.write_text(after)
        print(f"written: {page}")
    return count


def main(pages: list[Path] = PAGES) -> None:
    """Make the tables of all pages again."""
    print(f"tables made: {sum(map(rewrite, pages))}")


if __name__ == "__main__":
    main()
