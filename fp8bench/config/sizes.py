"""Other sizes of a workload's model, from `--size NAME=N`: a part of its name, so that it is another workload."""

from collections.abc import Iterable, Mapping

from fp8bench.config.options import is_whole, quoted, within
from fp8bench.schema.errors import UsageError
from fp8bench.schema.option import Limit

SIZE = Limit(2**24, "no model has it")


def read_sizes(words: Iterable[str]) -> dict[str, int]:
    """Return the sizes of words as NAME=N, by name. Raises UsageError; only the workload knows which names exist."""
    found: dict[str, int] = {}
    for word in words:
        name, equals, number = map(str.strip, word.partition("="))
        if not (name and equals and number):
            raise UsageError(f"--size {quoted(word)} is not NAME=N", "Give, for example, --size num_hidden_layers=4")
        flag = f"--size {name}"
        if not is_whole(number) or not number.strip("0"):
            what = f"{flag} {quoted(number)} is not a whole number of at least 1"
            raise UsageError(what, f"Give, for example, {flag}=1")
        size = within(flag, number, number, SIZE)
        if found.setdefault(name, size) != size:
            raise UsageError(f"{flag} is given as {found[name]} and as {size}", "Give one of them")
    return found


def sizes_of(workload: str) -> dict[str, int]:
    """Return the sizes in a workload's name. Raises UsageError for invalid ones."""
    return read_sizes(workload.split(",")[1:])


def sized(workload: str, sizes: Mapping[str, int] | None = None) -> str:
    """Return the name with these sizes, in place of its own and sorted. Raises UsageError for an invalid one in it."""
    every = sizes_of(workload) | dict(sizes or {})
    return ",".join([workload.partition(",")[0], *(f"{name}={every[name]}" for name in sorted(every))])
