"""Stands in for `launch.processes.ahead.Ahead`."""


class Ahead:
    """Writes down which ranks were expected before each run, and whether it was closed."""

    def __init__(self) -> None:
        self.expected: list[tuple[range | None, list[str]]] = []
        self.closed = False

    def expect(self, ranks: range | None, modules: list[str] = ()) -> None:
        self.expected.append((ranks, list(modules)))

    def close(self) -> None:
        self.closed = True
