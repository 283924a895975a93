"""Which known names an unknown one may have meant: by slips of the keyboard, and by family."""

from collections.abc import Iterable

AT_MOST = 4
"""Names in a suggestion: more are a listing, which has a command of its own."""

_SHORTEST_FAMILY = 2
_SLIP = 2
_REPLACED = 3
"""A letter too many, too few or out of its turn is a likelier slip than another letter: `p4` is rather p4d than p5."""


def nearest(name: str, known: Iterable[str], family: Iterable[str] = ()) -> list[str]:
    """The best first; empty where nothing comes near.

    family: known names that are of what `name` may name (instances that have the GPU). Where no name is within
    `edit_distance` of about one slip for every three letters, the family is meant, or a name that holds this one whole,
    or has its first part (`torchao-fp8`).
    """
    said = name.lower()
    candidates = list(dict.fromkeys(known))
    distances = {one: edit_distance(said, one.lower()) for one in candidates}
    slips = sorted((one for one in candidates if distances[one] <= _bearable(said)), key=distances.__getitem__)
    if slips:
        least = distances[slips[0]]
        return [one for one in slips if distances[one] == least][:AT_MOST]
    if len(said) < _SHORTEST_FAMILY:
        return []
    kin = [one for one in candidates if said in one.lower()]
    first, dash, _ = said.partition("-")
    cousins = [one for one in candidates if dash and one.lower().startswith(first + dash)]
    found = dict.fromkeys([*family, *kin, *sorted(cousins, key=distances.__getitem__)])
    return list(found)[:AT_MOST]


def edit_distance(first: str, second: str) -> int:
    """What it takes to make the one the other: 2 for a letter put in, taken out, or exchanged with its neighbour, 3 for
    one replaced (optimal string alignment: Damerau, 1964, no part edited twice).
    """
    before: list[int] = []
    row = [_SLIP * length for length in range(len(second) + 1)]
    for i, letter in enumerate(first, start=1):
        last, before, row = before, row, [_SLIP * i]
        for j, other in enumerate(second, start=1):
            cost = before[j - 1] + (_REPLACED if letter != other else 0)
            cost = min(cost, before[j] + _SLIP, row[j - 1] + _SLIP)
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                cost = min(cost, last[j - 2] + _SLIP)
            row.append(cost)
    return row[-1]


def _bearable(name: str) -> int:
    return max(_REPLACED, _SLIP * (len(name) // 3))
