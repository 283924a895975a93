"""The table of faults names tests that there are."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = (ROOT / "docs" / "faults.md").read_text()
NAMED = set(re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", TABLE))


def test_every_test_that_it_names_exists():
    missing = [name for name in NAMED if not ((ROOT if "/" in name else HERE) / name).is_file()]

    assert len(NAMED) > 10
    assert missing == []
