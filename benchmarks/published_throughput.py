"""Make the records of published throughput again from configs/published-throughput.yaml, and the tables that show them:
`make published`.
"""

from pathlib import Path

from tables import rewrite

from fp8bench.scaling.published import write_all
from fp8bench.schema.files import ROOT

PAGE = ROOT / "docs" / "scaling.md"


def main(page: Path = PAGE, results_dir: Path = ROOT / "results") -> None:
    """Write both. Commands of the page are run where their records are: in the current folder."""
    for path in write_all(results_dir):
        print(f"written: {path}")
    rewrite(page)


if __name__ == "__main__":
    main()
