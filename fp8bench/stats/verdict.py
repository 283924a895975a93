"""What can be said of two modes. Apart from `ratio`, which brings numpy, since every row of a table names it."""

from typing import Literal

Verdict = Literal["faster", "slower", "inconclusive"]
