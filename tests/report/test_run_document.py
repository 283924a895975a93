"""A comparison as a document: the table that answers, which fits 80 characters and whose row's name says what tells it
from others, and the one with every column, in every format. The README has short ones.

REGENERATE_GOLDEN=1 writes the files in golden/ anew; only then, and for a change of looks that is meant.
"""

import csv
import io
import json
import os
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from builders import (
    evidence,
    fingerprint,
    invalid,
    measured,
    measured_on_cpu,
    place,
    proof,
    published,
    replayed,
    rounds,
    summary,
    unsupported,
)
from report.comparing import asked, catalog, instance, price, row

from fp8bench.kinds.kind import AS_IT_IS, MAY_NOT_FIT, View
from fp8bench.kinds.run.answer import Comparison
from fp8bench.kinds.run.compare import compare
from fp8bench.kinds.run.rounds import Mark, Weight
from fp8bench.kinds.run.shown import document
from fp8bench.pricing.catalog import load
from fp8bench.tables.document import Table
from fp8bench.tables.render import csv_cell, render

GOLDEN = Path(__file__).parent / "golden"
REGENERATE = os.environ.get("REGENERATE_GOLDEN") == "1"
WIDE = View(wide=True)
NUMBER = re.compile(r"-?\b\d+\.\d+(?:e-?\d+)?\b")


def made_up_comparison() -> Comparison:
    """One row of each kind, with fixed dates and run ids."""
    no_fp8 = {"reason": "fp8 needs compute capability 8.9", "remedy": "Use te-bf16"}
    gpus = {"flops_per_step": 390_912_000_000_000, "joules_per_unit": 1.42, "units_per_kwh": 2_535_211.0}
    ran: dict[str, Any] = {"fp8": True, "fp8_kernels": True, "graph": replayed(), "executed": proof()}
    shown = evidence(attention="te:fused", recipe="delayed", **ran)
    auto: dict[str, Any] = {"cuda_graphs": "auto"}
    fp8: dict[str, Any] = {"mode": "te-fp8", "recipe": "delayed", "evidence": shown, "settings": auto}
    dead: dict[str, Any] = {"status": "failed", "reason": "rank 1 died: ended by SIGKILL", "cause": "host-death"}
    oom: dict[str, Any] = {"status": "failed", "reason": "the GPU ran out of memory", "cause": "oom"}
    refused = evidence(graph=replayed(enabled=False, reason="an event was queried while the step was captured"))
    capped = ("power-capped 98 % of the time",)
    starved = {"host_lead_s": 0.004, "data_wait_share": 0.31}
    on_cpu: dict[str, Any] = {"fingerprint": fingerprint(), "settings": {"world_size": 8, "batch_size": 64}}
    imitated: dict[str, Any] = {"evidence": evidence(recipe="tensorwise", emulated=True), **on_cpu}
    records = [
        published("own", published_on=date(2025, 3, 2), step_time_s=0.75, minutes=-10),
        *rounds(0.41, 0.412, 0.408, instance="p4d", minutes=0.1),
        unsupported("p4d", "te-fp8", "delayed", **no_fp8, minutes=1),
        unsupported("p4d", "torchao-float8", "tensorwise", **no_fp8, minutes=2),
        *rounds(0.2, 0.201, 0.199, minutes=3, summary=summary(0.2, **gpus)),
        *rounds(0.175, 0.176, 0.174, minutes=3.2, compiled=True),
        measured("p5", "te-bf16", evidence=refused, step_time_s=0.37, minutes=5, settings={"world_size": 4, **auto}),
        unsupported("p5", "te-fp8", "delayed", **oom, minutes=6.6, settings={"batch_size": 512, "cuda_graphs": "on"}),
        *rounds(0.125, 0.124, 0.126, **fp8, minutes=3.4, summary=summary(0.125, flags=capped, **gpus)),
        unsupported(**fp8, **dead, session=place(4), minutes=6.4),
        *rounds(0.2, 0.26, 0.15, mode="te-fp8", recipe="current", minutes=3.6, summary=summary(0.2, **starved)),
        invalid("p5", cause="parity", minutes=7),
        measured_on_cpu("cpu", minutes=8, step_time_s=0.8, **on_cpu),
        measured_on_cpu("cpu", "torchao-float8", recipe="tensorwise", minutes=9, step_time_s=1.6, **imitated),
    ]
    priced = catalog(
        instance("p4d", price(32.77, date(2026, 5, 1))),
        instance("p5", price(98.32, date(2026, 6, 15), source="another, with a comma")),
        instance("own", price(10.0, date(2025, 1, 1), source=None, derived=True)),
    )
    known = priced.model_copy(update={"gpus": load().gpus})
    return compare(records, known, asked("p4d", "p5", "own", "cpu", allow_mismatch=True))


@pytest.fixture(scope="module")
def found() -> Comparison:
    return made_up_comparison()


def text_in(form: str, comparison: Comparison) -> str:
    return render(document(comparison, view=WIDE), form)


def shown(*rows, form="plain", view=AS_IT_IS):
    return render(document(Comparison(rows=rows), view=view), form)


@pytest.mark.parametrize(
    ("name", "form"), [("comparison.md", "markdown"), ("comparison.txt", "plain"), ("comparison.csv", "csv")]
)
def test_the_text_is_that_of_the_golden_file(name: str, form: str, found: Comparison):
    text = text_in(form, found) + "\n"
    if REGENERATE:
        GOLDEN.mkdir(exist_ok=True)
        (GOLDEN / name).write_text(text, encoding="utf-8")
    golden = (GOLDEN / name).read_text(encoding="utf-8")
    assert NUMBER.sub("#", text) == NUMBER.sub("#", golden)
    # Another CPU adds in another order, so that the last digits of an interval may differ.
    assert list(map(float, NUMBER.findall(text))) == pytest.approx(list(map(float, NUMBER.findall(golden))), rel=1e-9)


def test_json_has_every_field_of_the_csv_with_its_value(found):
    heading, *lines = csv.reader(io.StringIO(text_in("csv", found)))
    rows = json.loads(text_in("json", found))
    assert [list(one) for one in rows] == [heading] * len(lines)
    cells = [[csv_cell(value) for value in one.values()] for one in rows]
    assert [["" if cell is None else str(cell) for cell in line] for line in cells] == lines
    assert {type(value) for one in rows for value in one.values()} == {str, int, float, bool, list, dict, type(None)}


@pytest.mark.parametrize(
    ("rows", "heading"),
    [
        ([{"unit": "tokens"}], "tokens/USD"),
        ([{"unit": "images"}, {"unit": "tokens"}], "units/USD"),
        ([{"joules_per_unit": 1.53, "unit": "images"}, {}], "J/image"),
        ([{"workload": "llm-micro"}], "tokens/USD"),
        ([{"workload": "vit-huge"}, {"workload": "timm:resnet50"}], "images/USD"),
        ([{"workload": "vit-huge"}, {"workload": "llm-1b"}], "units/USD"),
        ([{"workload": "of-a-plug-in"}], "units/USD"),
    ],
)
def test_headings_name_the_unit_of_the_rows_or_else_of_the_workload(rows, heading):
    assert heading in shown(*(judged(**{"unit": None} | changes) for changes in rows), view=WIDE).splitlines()[0]


MARK = "a mark of its own"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"usd_per_hour": 40.0}, "undated"),
        ({"marks": tuple(f"a mark of its own {n}" for n in range(4))}, f"{MARK} 0, {MARK} 1 [a] [b]"),
        ({"marks": ("external", "undated price", "a" * 25)}, "external, undated price [a]"),
    ],
)
def test_a_cell(changes, text):
    assert text in re.split(r"\s{2,}", shown(row(**changes), view=WIDE).splitlines()[2])


@pytest.mark.parametrize("width", [80, 120, 160, 240])
def test_the_terminal_table_shows_every_instance_mode_and_footnote(width, found, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    printed = text_in("terminal", found)
    assert max(len(line) for line in printed.splitlines()) <= width
    for one in found.rows:
        assert any(one.instance in line and one.mode_label in line for line in printed.splitlines()), one.mode_label
    (table,) = (part for block in document(found, view=WIDE).blocks for part in block if isinstance(part, Table))
    assert all(column.heading in printed for column in table.columns)
    assert "[a] " in printed
    assert "fp8 needs compute capability 8.9" in printed


def judged(**changes):
    known = {"step_time_s": 0.3487, "step_time_ci_s": (0.3472, 0.3501), "throughput_per_s": 734.0, "unit": "images"}
    known |= {"usd_per_hour": 3.99, "units_per_usd": 662_458.0, "speedup_vs_reference": 1.25}
    return row(**known | {"gain_vs_reference": 0.249, "verdict": "better value"} | changes)


def cells(line):
    return re.split(r"\s{2,}", line.strip())


STEP, VALUE = "348.7 ms ±0.4 %", "662 k"
UNDECIDED = {"verdict": "inconclusive", "verdict_on": "units_per_usd", "verdict_why": "it is close"}
BY_SPEED = {"verdict": "faster", "verdict_on": "throughput", "gain_vs_reference": None, "units_per_usd": None}
STOPPED = dict.fromkeys(("step_time_s", "speedup_vs_reference", "units_per_usd", "gain_vs_reference", "verdict"))


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (UNDECIDED, [STEP, "1.25x", VALUE, "+24.9 %"]),
        (BY_SPEED, [STEP, "1.25x *"]),
        ({"step_time_ci_s": (0.001, 90.0)}, ["348.7 ms ±>100 %", "1.25x", VALUE, "+24.9 %"]),
        ({"step_time_ci_s": None}, ["348.7 ms", "1.25x", VALUE, "+24.9 %"]),
        ({"status": "failed", "cause": "oom", "reason": "no memory", **STOPPED}, ["failed: oom", "-"]),
    ],
)
def test_it_answers_in_one_line_a_row(changes, wanted):
    one = judged(**changes)
    lines = shown(one).splitlines()
    assert cells(lines[0]) == ["mode", "step", "faster", *(["img/USD", "per USD"] if one.units_per_usd else [])]
    assert cells(lines[2]) == ["te-fp8", *wanted]
    decided = one.verdict not in (None, "inconclusive")
    assert any(line.startswith("* certain: the whole interval on one side") for line in lines) == decided


@pytest.mark.parametrize(
    ("rows", "place", "column"),
    [
        ([{"execution": "compiled+graphed"}, {"execution": "eager"}], 0, ["mode", "te-fp8, compiled", "te-fp8, eager"]),
        ([{"execution": "graphed"}, {"execution": None}], 0, ["mode", "te-fp8", "te-fp8"]),
        ([{"te_switches": "split-qkv"}, {}], 0, ["mode", "te-fp8+split-qkv", "te-fp8"]),
        ([{"grad_accumulation": n} for n in (4, 1)], 0, ["mode", "te-fp8, 4 micro-batches", "te-fp8, 1 micro-batch"]),
        ([{"source": "published"}, {}], 0, ["mode", "te-fp8, published", "te-fp8"]),
        ([{"source": "published"}] * 2, 0, ["mode", "te-fp8", "te-fp8"]),
        ([{"marks": (f"needs 76.7 of 80 GiB: {MAY_NOT_FIT}",)}, {}], 0, ["mode", "te-fp8, may not fit", "te-fp8"]),
        ([{"machine": name * 16} for name in "ab"], 1, ["instance", "p5", "p5 #2"]),
        ([{}, {}], 1, ["step", STEP, STEP]),
        ([{}, {"batch_size": 256}], 1, ["batch", "64", "256"]),
        ([{}, {"world_size": 4}], 1, ["GPUs", "8", "4"]),
        ([{}, {"world_size": 4, "batch_size": 256}], 1, ["batch", "64 x 8", "256 x 4"]),
    ],
)
def test_what_tells_rows_apart_is_in_their_names_or_in_a_column(rows, place, column):
    lines = shown(*(judged(**changes) for changes in rows)).splitlines()
    assert [cells(line)[place] for line in (lines[0], *lines[2:4])] == column


def test_at_80_columns_a_row_takes_two_lines_at_most_where_rows_of_two_machines_need_each_others_names():
    executions = ("eager", "compiled", "blocks", "compiled+graphed", "blocks+graphed", "graphed")
    modes = [("torchao-float8", "tensorwise", one) for one in executions[:5]] + [("te-fp8", "delayed", "graphed")]
    modes += [("te-fp8", "delayed", "eager"), *(("baseline-bf16", None, one) for one in executions[:5])]
    rows = [
        judged(mode=mode, recipe=recipe, execution=one, instance=instance, machine=machine, batch_size=batch, **slow)
        for mode, recipe, one in modes
        for instance, machine in (("h200-1x", "a"), ("h200-1x", "b"), ("h100-1x", "c"))
        for batch, slow in ((64, {}), (256, {"step_time_s": 1.3487, "step_time_ci_s": (1.1, 1.6)}))
    ]
    rows.append(judged(mode="te-bf16", recipe=None, instance="h200-1x", machine="a", machine_label="left"))
    above, _, *lines = shown(*rows).split("\n\n")[0].splitlines()[1:]
    at = {heading: above.index(heading) for heading in ("mode", "instance", "batch")}
    told = lines.index("* certain: the whole interval on one side, and 4 % more between machines")
    firsts = [place for place, line in enumerate(lines[:told]) if line[at["instance"] :].strip()]
    assert len(firsts) == len(rows)
    assert max(after - first for first, after in zip(firsts, [*firsts[1:], told], strict=True)) == 2
    assert max(map(len, lines)) <= 80
    assert {line[at["instance"] : at["batch"]].strip() for line in lines[:told]} == {
        *("", "h100-1x", "h200-1x", "h200-1x #2")
    }
    assert lines[told + 1] == "#2 another machine of h200-1x: b"


def test_predicted_rows_wait_for_notes_where_others_are_published_and_a_column_has_names_beside_it():
    rows = [judged(source="published"), judged(source="predicted", measured_on="h200-1x", te_switches="split-qkv")]
    assert "1 more row: --wide" in shown(*rows)
    assert "te-fp8+split-qkv" not in shown(*rows)
    assert "te-fp8+split-qkv" in shown(*rows, view=View(notes=True))
    lines = shown(*rows, view=View(columns=("switches",))).splitlines()
    assert list(map(cells, lines[2:4])) == [["te-fp8, published", "-"], ["te-fp8+split-qkv", "split-qkv"]]


class TestNotes:
    def test_what_would_change_a_decision_comes_first_and_three_at_most(self):
        marks = (
            *("power-capped 98 % of the time", "machine a"),
            Mark("busy GPU", Weight.DOUBT),
            Mark("not comparable with the reference: machine", Weight.NOT_COMPARED),
        )
        refused = row(status="invalid", reason="the gradient at the input is 0", mode="te-bf16", recipe=None)
        lines = shown(judged(marks=marks), refused).splitlines()[4:]
        assert lines == [
            "* certain: the whole interval on one side, and 4 % more between machines",
            "",
            "Which mode? Not decided: there is no other row to compare it with.",
            "",
            "te-bf16: the gradient at the input is 0",
            "te-fp8: not comparable with the reference: machine",
            "te-fp8: busy GPU",
            "2 more notes: --notes",
        ]
        every = shown(judged(marks=marks), refused, view=View(notes=True))
        assert "te-fp8: power-capped 98 % of the time" in every
        assert "more note" not in every

    def test_a_note_names_its_rows(self):
        capped = ("power-capped 98 % of the time",)
        text = shown(judged(marks=capped), judged(batch_size=128), judged(marks=capped, instance="p4d"))
        assert "te-fp8 p5 64 and te-fp8 p4d 64: power-capped 98 % of the time" in text


def test_a_job_has_hours_and_usd_instead_of_steps():
    job = {"job_hours": 34.05, "job_hours_ci": (33.91, 34.19), "job_usd": 135.9, "job_usd_ci": (135.3, 136.4)}
    text = shown(judged(job_units=9e7, **job))
    assert re.search(r"34\.0 \(33\.9-34\.2\) +136 \(135-136\) +1\.25x", text)
    assert "step" not in text.splitlines()[0]
    assert "training steps alone" in text
