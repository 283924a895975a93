"""A check in the file formats of continuous integration tools. Each function returns the text of one file.

github-action-benchmark (benchmark-action/github-action-benchmark, README, "customSmallerIsBetter"): a list of `name`,
`unit`, `value`, and the texts `range` and `extra`. Its reader accepts a range as `\u00b1 NUMBER`, with a number of at
least two characters.

Bencher Metric Format (bencher.dev/bmf.json): benchmark, then measure, then `value` with its lower and upper ends. The
measures of every project are `latency`, in nanoseconds, and `throughput`, in operations a second.

JUnit XML (junit-10.xsd of Jenkins' xUnit plugin): a test case for each variant. A variant that fails is a failure, one
that did not run an error, and one that is not judged is skipped, each with its reason.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from xml.etree import ElementTree

from fp8bench.kinds.run.check.document import document, sentence
from fp8bench.kinds.run.check.result import Check, CheckedRow
from fp8bench.schema.errors import inert
from fp8bench.tables.render import render
from fp8bench.tables.written import Interval, change

SUITE = "fp8bench check"


def names_of(check: Check) -> dict[CheckedRow, str]:
    """Return each row's unique name, which is the same in every check."""
    bare = {row: _name(row) for row in check.rows}
    several = [name for name, count in Counter(bare.values()).items() if count > 1]
    return {row: f"{name} [{row.attention}]" if name in several else name for row, name in bare.items()}


def _name(row: CheckedRow) -> str:
    sizes = f"{row.workload}, batch {row.batch_size} x {row.world_size}"
    return inert(f"{row.label} ({sizes}{f', {row.optimizer}' if row.optimizer else ''})")


def github_smaller(check: Check) -> str:
    """Return step times in milliseconds, for the tool `customSmallerIsBetter`."""
    return _github(check, "ms", lambda row: _scaled(row.step_time_s, row.step_time_ci_s, 1e3))


def github_bigger(check: Check) -> str:
    """Return throughput in units a second, for the tool `customBiggerIsBetter`."""
    return _github(check, None, lambda row: _scaled(row.throughput_per_s, row.throughput_ci_per_s, 1))


def bencher(check: Check) -> str:
    """Return latency in nanoseconds and throughput in units a second, for `bencher run --adapter json`."""
    names = names_of(check)
    found = {
        names[row]: {
            "latency": _metric(row.step_time_s, row.step_time_ci_s, 1e9),
            "throughput": _metric(row.throughput_per_s, row.throughput_ci_per_s, 1),
        }
        for row in _measured(check)
    }
    return _json(found)


def junit(check: Check) -> str:
    """Return one suite with a case for each variant; `time` is the step's, in seconds."""
    failing = [row for row in check.rows if check.fails(row)]
    stopped = [row for row in failing if row.outcome in ("failed", "missing")]
    skipped = [row for row in check.rows if row not in failing and row.outcome != "ok"]
    counts = {
        "tests": str(len(check.rows)),
        "failures": str(len(failing) - len(stopped)),
        "errors": str(len(stopped)),
        "skipped": str(len(skipped)),
    }
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": SUITE, **counts})
    for row, name in names_of(check).items():
        case = ElementTree.SubElement(suite, "testcase", {"classname": _xml(row.instance), "name": _xml(name)})
        if row.step_time_s is not None:
            case.set("time", f"{row.step_time_s:.9f}")
        if row.outcome != "ok":
            tag = "error" if row in stopped else "failure" if row in failing else "skipped"
            message = {"message": _xml(_message(row))}
            ElementTree.SubElement(case, tag, message if tag == "skipped" else {**message, "type": row.outcome})
    ElementTree.SubElement(suite, "system-out").text = _xml(sentence(check))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode")


def _rendered(form: str) -> Callable[[Check], str]:
    return lambda check: render(document(check), form)


EXPORTS: Mapping[str, Callable[[Check], str]] = {
    "github-smaller": github_smaller,
    "github-bigger": github_bigger,
    "bencher": bencher,
    "junit": junit,
    **{form: _rendered(form) for form in ("csv", "markdown", "json")},
}
"""Exports by the name that `--export` takes."""


def _measured(check: Check) -> Iterator[CheckedRow]:
    return (row for row in check.rows if row.step_time_s is not None)


def _github(check: Check, unit: str | None, value: Callable[[CheckedRow], tuple[float, Interval | None] | None]) -> str:
    entries, names = [], names_of(check)
    for row in _measured(check):
        number, interval = value(row) or (0.0, None)
        entry = {"name": names[row], "unit": unit or f"{row.unit}/s", "value": number}
        if interval is not None:
            # The format takes one number: the longer side, so that the interval lies within it.
            entry["range"] = f"\u00b1 {max(interval[1] - number, number - interval[0]):.6f}"
        entries.append({**entry, "extra": _message(row)})
    return _json(entries)


def _scaled(value: float | None, interval: Interval | None, by: float) -> tuple[float, Interval | None] | None:
    if value is None:
        return None
    return value * by, (interval[0] * by, interval[1] * by) if interval else None


def _metric(value: float | None, interval: Interval | None, by: float) -> dict[str, float]:
    scaled, ends = _scaled(value, interval, by) or (0.0, None)
    return {"value": scaled, **({"lower_value": ends[0], "upper_value": ends[1]} if ends else {})}


def _message(row: CheckedRow) -> str:
    """Return e.g. `regression: step time +12.3 % (+11.0 to +13.6)`, with the reason."""
    longer = "" if row.change is None else f"step time {change(row.change, row.change_ci)}"
    outcome = "undecided" if row.outcome == "inconclusive" else row.outcome
    return inert(f"{outcome}: {'; '.join(part for part in (longer, row.reason or '', *row.marks) if part)}")


_NO_XML = re.compile("[\ufffe\uffff]")


def _xml(text: str) -> str:
    """Return the text without what XML 1.0 cannot represent."""
    return _NO_XML.sub("\ufffd", inert(text))


def _json(value: object) -> str:
    import json

    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
