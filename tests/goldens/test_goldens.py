"""What must not change: `compare`, `explain`, `check` and `converge` in JSON over every committed record.

A folder of records and a command have one file here. A row has one line; what all rows of a call share has one more.
Numbers are equal within 1e-12 of their size, all else is equal. What is null is left out; "null" has the keys that are
null in every row of a file. Left out, too: traces of `numerics` and `converge`, later rounds in `explain` (records.json
has their centres), and of two modes explained together what `explain` says of each alone.

The rule: a golden changes only in a commit that holds nothing else and lists every key that changes with its reason.
Centres, throughput and fingerprints stay equal to 1e-12, and so do the prices of a day. To write the files again:

    REGENERATE_GOLDEN=1 pytest tests/goldens
"""

import json
import math
import os
import re
import shutil
import subprocess
from functools import cache
from itertools import chain, takewhile
from pathlib import Path

import pytest
from cli.calling import OURS, invoked

from fp8bench import registry
from fp8bench.schema.errors import Fp8benchError
from fp8bench.schema.record import ThroughputRecord

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LISTED = subprocess.run(
    ["git", "ls-files", "-z", "results/*.json", "evidence/*.json", "tests/faults/golden/*-converge-*.json"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
)
FILES = sorted(map(Path, filter(None, LISTED.stdout.split("\0"))))
COMMITTED = [path for path in FILES if not path.name.endswith(".samples.json")]
FOLDERS = sorted({Path("results"), *(path.parent for path in COMMITTED)})
MODELS = {**{name: registry.kind(name).record for name in registry.KINDS}, "throughput": ThroughputRecord}
CHECKED_AGAINST = {
    "evidence/a-a/h200-1x": "results/h200-1x",
    "evidence/split-qkv/h200-1x": "results/h200-1x",
    "evidence/sweeps/h100-1x": "results/h100-1x",
    "evidence/uneven-batches/h200-1x": "results/h200-1x",
    "results/h100-1x": "evidence/sweeps/h100-1x",
    "results/h200-1x": "evidence/split-qkv/h200-1x",
}
"""Folders with variants in common. Of any other, `check --plan` alone has something to say."""
AS_OF = ("--price-as-of", "2026-11-23")
NAMED_BY = (
    *("run_id", "instance", "machine", "label", "source", "mode", "recipe", "execution", "workload", "batch_size"),
    *("product", "role", "precision", "m", "n", "k", "operation", "dtype", "size_bytes", "layer", "input", "tensor"),
)
"""What a row is called by, where it has it."""
BULKY = ("history", "trainings")
"""Traces of `numerics` and of each training of `converge`."""


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The committed records alone: what was measured in this checkout lies beside them."""
    root = tmp_path_factory.mktemp("committed")
    for path in FILES:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    return root


@cache
def heads(folder, kind="run"):
    """(path, record as its file has it) of a kind."""
    found = [(path, json.loads((ROOT / path).read_text())) for path in COMMITTED if path.parent == folder]
    return [(path, record) for path, record in found if record.get("kind", "run") == kind]


def timed(folder):
    return [(path, one) for path, one in heads(folder) if one["status"] == "ok" and one["source"] == "measured"]


def work_of(record):
    return ("--workload", record["fingerprint"]["workload"], "--batch-size", str(record["config"]["batch_size"]))


def compare(folder):
    """The rows of equal work, of one instance and of several; records of other kinds; what was published."""
    here = ("compare", folder.name, "--results-dir", str(folder))
    for work in sorted({work_of(record) for _, record in timed(folder)}):
        yield (*here, *AS_OF, *work, *(("--group-by", "machine") if "machines" in folder.parts else ()))
    for kind in ("gemm", "numerics", "collectives"):
        if heads(folder, kind):
            yield (*here, "--kind", kind)
    if folder.name == "published":
        for as_of in (("--price-as-of", "2023-11-15"), AS_OF):
            yield ("compare", "p4d", "p5", "--results-dir", str(folder), *as_of)
    if folder == Path("results"):
        several = "h200-1x h100-1x h200-2x h100-2x".split()
        yield ("compare", *several, *AS_OF, "--workload", "vit-huge", "--batch-size", "64")


def explain(folder):
    """The first record of each variant, by itself and against the first compiled baseline of its work."""
    first = {}
    for path, record in timed(folder):
        variant = record["run_id"].partition("-")[2][:-7]
        first.setdefault((work_of(record), variant), path)
    for (work, _), path in first.items():
        yield ("explain", str(path))
        reference = first.get((work, "baseline-bf16"))
        if reference is not None and reference != path:
            yield ("explain", str(path), str(reference))


def check(folder):
    sessions = sorted({record["session"]["session_id"] for _, record in timed(folder)})
    for session in sessions:
        here = ("check", "--results-dir", str(folder), "--session", session)
        yield (*here, "--plan")
        if str(folder) in CHECKED_AGAINST:
            against = ("--against", CHECKED_AGAINST[str(folder)], "--max-regression", "1%", "--allow-mismatch")
            yield (*here, *against)


def converge(folder):
    for path, record in heads(folder, "converge"):
        yield ("converge", "--record", str(path))
        yield ("compare", record["instance"], "--kind", "converge", "--results-dir", str(folder), "--price", "cpu=2.5")


COMMANDS = (compare, explain, check, converge)


def name_of(folder, command):
    return f"{str(folder).replace('/', '-')}.{command.__name__}"


def said(call):
    """The rows of a call by their names, the exit code in the row called `call`."""
    try:
        done = invoked(*call, "--format", "json")
        code, text = done.exit_code, done.stdout
    except Fp8benchError as error:
        code, text = error.exit_code, ""
    document = json.loads(text) if text else []
    rows = {"call": {"exit_code": code}}
    if isinstance(document, dict):
        rows["call"].update({name: value for name, value in document.items() if name not in ("rows", "modes")})
        together = call[0] == "explain" and len(document["modes"]) > 1
        document = [] if together else [*document.get("rows", ()), *document.get("modes", ())]
    for row in chain.from_iterable([one, *one.pop("rows", ())] for one in document):
        row = {key: one for key, one in row.items() if key not in BULKY}
        name = " ".join(str(row[key]) for key in NAMED_BY if row.get(key) is not None)
        same = sum(one.partition(" #")[0] == name for one in rows)
        rows[f"{name} #{same + 1}" if same else name] = {key: one for key, one in row.items() if key not in NAMED_BY}
    return rows


def without_nulls(value):
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def keys(value, before=""):
    """Every key, with those around it; of a list the keys of its items."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield f"{before}{name}"
            yield from keys(one, f"{before}{name}.")
    elif isinstance(value, list):
        yield from chain.from_iterable(keys(one, before) for one in value)


def differences(now, golden, where):
    if isinstance(now, dict) and isinstance(golden, dict):
        for name in {**golden, **now}:
            yield from differences(now.get(name), golden.get(name), f"{where}: {name}")
    elif isinstance(now, list) and isinstance(golden, list) and len(now) == len(golden):
        for place, (one, other) in enumerate(zip(now, golden, strict=True)):
            yield from differences(one, other, f"{where}[{place}]")
    elif isinstance(now, float) and isinstance(golden, float):
        if not math.isclose(now, golden, rel_tol=1e-12):
            yield f"{where} is {now!r}, was {golden!r}"
    elif now != golden:
        yield f"{where} is {now!r}, was {golden!r}"


def written(rows):
    """A call's rows as text, what all have in common in a row of its own."""
    first, *others = [row for name, row in rows.items() if name != "call"] or [{}]
    alike = {key: one for key, one in first.items() if others and all(row.get(key) == one for row in others)}
    lines = {"every row": alike, **rows} if alike else rows
    short = {
        name: {key: one for key, one in row.items() if name in ("call", "every row") or key not in alike}
        for name, row in lines.items()
    }
    return ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in short.items())


def read(path):
    """The calls of a golden, with all rows in full."""
    calls = json.loads(path.read_text())
    for rows in calls.values():
        alike = rows.pop("every row", {})
        rows.update({name: {**alike, **row} for name, row in rows.items() if name != "call"})
    return calls


def held(name, calls):
    """Write the golden if asked to, and fail with every key that differs."""
    known = {call: without_nulls(rows) for call, rows in calls.items()}
    every, some = ({key for rows in found.values() for key in keys(list(rows.values()))} for found in (calls, known))
    document = {"": {"call": {"null": sorted(every - some)}}, **known}
    path = HERE / f"{name}.json"
    if os.environ.get("REGENERATE_GOLDEN") == "1":
        parts = [f"{json.dumps(call)}: {{\n{written(rows)}\n}}" for call, rows in document.items()]
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    golden = read(path)
    found = list(differences(document, golden, name))
    found += [
        f"{name}: {call}: its rows are in another order"
        for call, rows in golden.items()
        if list(rows) != list(document.get(call, rows))
    ]
    if found:
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_it_says_what_it_said(folder, command, records, monkeypatch):
    monkeypatch.chdir(records)
    for variable in filter(OURS.match, list(os.environ)):
        monkeypatch.delenv(variable)
    if calls := list(command(folder)):
        held(name_of(folder, command), {" ".join(call): said(call) for call in calls})


FIELDS = {"step": "step_time_s", "faster": "speedup_vs_reference", "per USD": "gain_vs_reference"}


def table_of(text):
    """The lines of the table that a text begins with, and the (beginning, end) of its columns."""
    lines = text.splitlines()
    rule = next(place for place, line in enumerate(lines) if set(line) == {"-", " "})
    columns = [found.span() for found in re.finditer("-+", lines[rule])]
    gaps = [end for _, end in columns[:-1]]
    rows = takewhile(lambda line: line and not any(line[gap : gap + 2].strip() for gap in gaps), lines[rule + 1 :])
    return lines[: rule + 1], [*rows], columns


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_at_80_columns_it_looks_as_it_did_and_no_dash_stands_where_there_is_a_figure(folder, records, monkeypatch):
    monkeypatch.chdir(records)
    for variable in filter(OURS.match, list(os.environ)):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "80")
    shown = []
    for call in (call for call in compare(folder) if not {"--kind", "--group-by"} & {*call}):
        found = json.loads(invoked(*call, "--format", "json").stdout)
        head, rows, columns = table_of(invoked(*call).stdout)
        shown += [" ".join(call), *head, *rows, ""]
        assert max(map(len, [*head, *rows])) <= 80
        cells = {
            " ".join(line[start:end].strip() for line in head[:-1]).strip(): (start, end) for start, end in columns
        }
        start, end = cells["step"]
        firsts = [line for line in rows if line[start:end].strip()]
        assert len(firsts) == len(found) or len({row["instance"] for row in found}) > 2
        for row, line in zip(found, firsts, strict=len(firsts) == len(found)):
            for heading, (start, end) in cells.items():
                field = FIELDS.get(heading, "units_per_usd" if "/USD" in heading else None)
                if len(firsts) == len(found) and field is not None and row[field] is not None:
                    assert line[start:end].strip() != "-", (call, heading, line)
    path = HERE / f"{name_of(folder, compare)}.txt"
    if os.environ.get("REGENERATE_GOLDEN") == "1" and shown:
        path.write_text("\n".join(shown))
    assert "\n".join(shown) == (path.read_text() if path.exists() else "")


def test_every_record_has_the_centre_and_the_fingerprint_that_it_had():
    fingerprints, centres = {}, {}
    for path in COMMITTED:
        text = (ROOT / path).read_text()
        record = MODELS[json.loads(text).get("kind", "run")].model_validate_json(text)
        name = json.dumps(record.fingerprint, sort_keys=True)
        first = fingerprints.setdefault(name, (path.stem, record.fingerprint))[0]
        summary = getattr(record, "summary", None)
        of_summary = {key: getattr(summary, key) for key in ("step_time_s", "throughput_per_s") if summary is not None}
        centres[f"{path.parent}/{path.stem}"] = {"status": record.status, "fingerprint_of": first, **of_summary}
    held("records", {"fingerprints": dict(fingerprints.values()), "centres": centres})


def test_every_golden_is_of_a_folder_and_a_command_that_say_something():
    made = {f"{name_of(folder, command)}.json" for folder in FOLDERS for command in COMMANDS if any(command(folder))}
    assert {path.name for path in HERE.glob("*.json")} == {*made, "records.json"}
