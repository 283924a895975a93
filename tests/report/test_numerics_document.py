"""Errors as text: what stands on a line, what is left to the notes, and that machines get every number."""

import csv
import io
import json

import pytest
from report.made_numerics import DOWN_AT, STEPS, record, refused, row, trace

from fp8bench.kinds.numerics.compared import scaling_name
from fp8bench.kinds.numerics.document import blocks, document, jump_table, lines
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.schema.numerics import INPUTS, TENSORS
from fp8bench.tables.document import Document
from fp8bench.tables.render import render


def text_in(form, records):
    """Of records in one table."""
    whole = document(records)
    return render(Document(blocks(records), whole.data, whole.lines), form)


def lines_of(table):
    return [line.split() for line in table.splitlines()]


def test_a_line_has_the_three_tensors_of_a_layer_input_and_mode():
    rows = [
        row(tensor="output", relative_error=0.0379, sqnr_db=28.43),
        row(tensor="input_gradient", relative_error=0.059, sqnr_db=24.58, flushed=0.5),
        row(tensor="weight_gradient", relative_error=0.0, sqnr_db=None, saturated=1e-6),
    ]
    [line] = [line for line in lines_of(text_in("plain", [record(*rows)])) if line[:1] == ["linear"]]
    assert line == [
        *("linear", "normal", "te-fp8:delayed", "3.8e-02", "28.4", "5.9e-02", "24.6", "0", "inf"),
        *("0.0001", "%", "50", "%"),
    ]


def test_lines_go_by_layer_then_input_then_mode_and_what_did_not_run_is_last():
    found = lines([record()])
    names = [(line.first.layer, line.first.input) for line in found]
    assert names[:3] == [("linear", "normal")] * 3
    assert names[18] == ("block", "normal")
    assert [line.first.mode for line in found[:3]] == ["baseline-bf16", "torchao-float8:tensorwise", "te-fp8:delayed"]
    assert (found[-1].first.mode, found[-1].first.status) == ("te-fp8:mxfp8", "unsupported")
    assert len(found) == 3 * (len(INPUTS) + 3) + 1


def test_equal_reasons_share_a_letter_under_the_table():
    rows = [row(), refused("te-fp8:block"), refused("te-fp8:mxfp8"), refused("te-fp8:current", "no kernel", "failed")]
    plain = text_in("plain", [record(*rows)])
    assert plain.count("unsupported [a]") == 2
    assert "failed [b]" in plain
    assert "\n[a] it needs another GPU\n[b] no kernel\n" in plain


def test_without_reasons_there_is_no_column_for_notes():
    assert "notes" not in text_in("plain", [record(row())])


def test_a_number_that_is_not_known_is_a_dash():
    [line] = [line for line in lines_of(text_in("plain", [record(row(layer="block"))])) if line[:1] == ["block"]]
    assert line[3:] == ["3.9e-02", "28.0", "-", "-", "-", "-", "-", "-"]


def test_a_failure_after_others_is_told_on_its_own_line():
    rows = [row(), refused("te-fp8:delayed", "overflow", "invalid", layer="linear", input="outlier", tensor="output")]
    plain = text_in("plain", [record(*rows)])
    assert "invalid [a]" in next(line for line in plain.splitlines() if "outlier" in line)


def test_records_of_several_instances_are_told_apart():
    plain = text_in("plain", [record(row()), record(row(), instance="p6", minutes=1)])
    assert [line[0] for line in lines_of(plain) if "te-fp8:delayed" in line] == ["p5", "p6"]
    assert plain.count("A jump") == 2
    assert "(p6)" in plain


def test_markdown_has_two_tables():
    tables = [line for line in text_in("markdown", [record()]).splitlines() if line.startswith("|--")]
    assert len(tables) == 2


def test_the_jump_in_numbers():
    cells = {line[0]: line[1:] for line in jump_table(record().history).rows()}
    assert cells["delayed, max of 1024"] == ["simulation", "1", "96 %", "9.7e-01", f"> {STEPS - DOWN_AT}"]
    assert cells["delayed, max of 16"][-1] == "3"
    assert cells["delayed, most recent"][-1] == "1"
    assert cells["current"] == ["simulation", "0", "0 %", "2.6e-02", "0"]


def test_what_transformer_engine_did_stands_under_what_was_simulated():
    table = jump_table(record(measured=True).history).rows()
    assert [line[1] for line in table] == ["simulation"] * 4 + ["Transformer Engine"] * 3
    assert table[4][2:] == table[0][2:]


@pytest.mark.parametrize(
    ("scaling", "algo", "length", "name"),
    [
        ("delayed", "max", 1024, "delayed, max of 1024"),
        ("delayed", "most_recent", 16, "delayed, most recent"),
        ("current", None, None, "current"),
    ],
)
def test_names_of_scalings(scaling, algo, length, name):
    assert scaling_name(trace(scaling, algo, length)) == name


def test_json_is_the_records_unrounded():
    made = record(measured=True)
    assert [NumericsRecord.model_validate(one) for one in json.loads(text_in("json", [made]))] == [made]


def test_csv_has_a_line_a_tensor_with_every_field():
    lines = list(csv.DictReader(io.StringIO(text_in("csv", [record()]))))
    assert len(lines) == 3 * (len(INPUTS) + 3) * len(TENSORS) + 1
    assert lines[0]["reason"] == "it needs another GPU"
    assert lines[0]["relative_error"] == ""
    assert (lines[1]["instance"], lines[1]["tensor"], float(lines[1]["relative_error"])) == ("p5", "output", 3e-3)


@pytest.mark.parametrize("width", [80, 160])
def test_a_terminal_folds_names_where_it_is_narrow(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    modes = ("torchao-float8:rowwise_with_gw_hp", "te-fp8:delayed")
    print(
        text_in("terminal", [record(*(row(mode, "linear", "outlier", tensor) for mode in modes for tensor in TENSORS))])
    )
    said = capsys.readouterr().out
    assert "rowwise_with_gw_hp" in said
    assert max(map(len, said.splitlines())) <= width
    assert "3.9e-02" in said
    assert "1.2 %" in said


def test_a_terminal_has_a_table_of_what_did_not_run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    print(text_in("terminal", [record(row(layer="block"), refused())]))
    said = capsys.readouterr().out
    assert "unsupported" in said
    assert "[a] it needs another GPU" in said
