"""Letters for what is too long for a cell of a table, and is told under it."""

from collections.abc import Iterable
from string import ascii_lowercase


class Letters:
    """Gives each text a letter when it is first asked for; equal texts share one. After `z` comes `aa`, then `bb`.

    texts: get theirs at once, in this order.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._given: dict[str, str] = {}
        for text in texts:
            self.of(text)

    def of(self, text: str) -> str:
        """`a`."""
        place = len(self._given)
        return self._given.setdefault(text, ascii_lowercase[place % 26] * (1 + place // 26))

    def mark(self, status: str | None, reason: str) -> str:
        """`invalid [a]`: for a cell of what is not ok."""
        return f"{status} [{self.of(reason)}]"

    def lines(self) -> list[str]:
        """`[a] the text`, a line each."""
        return [f"[{letter}] {text}" for text, letter in self._given.items()]
