"""Errors of one record and of several side by side, the jump, the figures, and that machines get every number."""

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from report.made_numerics import DOWN_AT, STEPS, history, record, refused, row

from fp8bench.kinds.numerics import document as shown
from fp8bench.kinds.numerics.document import LEAST, error_dots, jump_lines
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.schema.numerics import INPUTS, TENSORS
from fp8bench.tables.document import Heading, Note, Sentence, Table
from fp8bench.tables.render import render


def document(records):
    return shown.document(records, None)


def parts(found, kind):
    return [part for block in found.blocks for part in block if isinstance(part, kind)]


def said(*records):
    return [part.text for part in parts(document(records), (Heading, Note, Sentence))]


def tables(*records):
    """The cells of each table, row by row."""
    return [table.rows() for table in parts(document(records), Table)]


class TestOneRecord:
    def test_a_row_has_the_three_tensors_of_an_input_and_mode(self):
        rows = [
            row(tensor="output", relative_error=0.0379),
            row(tensor="input_gradient", relative_error=0.059, flushed=0.5),
            row(tensor="weight_gradient", relative_error=0.0, saturated=1e-6),
            row(layer="block"),
        ]
        linear, block, _jump = tables(record(*rows))
        assert linear == [["normal", "te-fp8:delayed", "3.8e-02", "5.9e-02", "0", "0.0001 %", "50 %"]]
        assert block == [["normal", "te-fp8:delayed", "3.9e-02"]], "what is not known of any row has no column"

    def test_rows_go_by_layer_input_and_mode_and_what_did_not_run_is_last(self):
        linear, block, not_run, _jump = tables(record())
        assert [one[0] for one in linear[::3]] == list(INPUTS)
        assert [one[1] for one in linear[:3]] == ["baseline-bf16", "torchao-float8:tensorwise", "te-fp8:delayed"]
        assert (len(linear), len(block)) == (3 * len(INPUTS), 3 * 3)
        assert not_run == [["te-fp8:mxfp8", "unsupported [a]"]]

    def test_reasons_stand_below_and_equal_ones_share_a_letter(self):
        lost = refused("te-fp8:delayed", "overflow", "invalid", layer="linear", input="outlier")
        nan = refused("te-fp8:delayed", "output is not finite", "invalid", layer="linear", input="outlier-exact")
        nan = nan.model_copy(update={"tensor": "output"})
        rows = [row(), lost, nan, refused("te-fp8:block"), refused("te-fp8:mxfp8")]
        rows.append(refused("te-fp8:current", "no kernel"))
        linear, not_run, _jump = tables(record(*rows))
        assert [one[2] for one in linear] == ["3.9e-02", "invalid [a]", "invalid"]
        assert [one[-1] for one in not_run] == ["unsupported [b]", "unsupported [b]", "unsupported [c]"]
        assert {"[a] overflow", "[b] it needs another GPU", "[c] no kernel"} <= set(said(record(*rows)))

    def test_the_jump_in_numbers(self):
        rows = {tuple(one[:2]): one[2:] for one in tables(record(measured=True))[-1]}
        assert rows["delayed, max of 1024", "simulation"] == ["1", "96 %", "9.7e-01", f"> {STEPS - DOWN_AT}"]
        assert rows["delayed, max of 16", "simulation"][-1] == "3"
        assert rows["delayed, most recent", "simulation"][-1] == "1"
        assert rows["current", "simulation"] == ["0", "0 %", "2.6e-02", "0"]
        assert len([one for one in rows if one[1] == "Transformer Engine"]) == 3

    def test_json_and_csv_are_the_records_unrounded(self):
        made = [record(measured=True), record(row(), instance="p4d", fingerprint={"kind": "numerics", "width": 64})]
        assert [NumericsRecord.model_validate(one) for one in json.loads(render(document(made), "json"))] == made
        lines = list(csv.DictReader(io.StringIO(render(document(made), "csv"))))
        assert len(lines) == 3 * (len(INPUTS) + 3) * len(TENSORS) + 2
        assert (lines[0]["reason"], lines[0]["relative_error"]) == ("it needs another GPU", "")
        assert (lines[1]["instance"], lines[1]["tensor"], float(lines[1]["relative_error"])) == ("p5", "output", 3e-3)


FIRST = record(
    row(relative_error=0.0379),
    row(tensor="input_gradient", relative_error=0.05),
    refused("te-fp8:mxfp8"),
    instance="p5en",
)
OTHER = record(
    row(relative_error=0.0417), row(tensor="input_gradient", relative_error=0.0499), instance="p5", minutes=3
)


class TestSideBySide:
    def test_a_row_has_each_records_error_and_the_ratio_and_a_jump_each_records_answer(self):
        linear, not_run, _jump = tables(FIRST, OTHER)
        assert linear == [
            ["normal", "te-fp8:delayed", "output", "3.8e-02", "4.2e-02", "1.10x"],
            ["", "", "input grad.", "5.0e-02", "5.0e-02", "1.00x"],
        ]
        assert not_run == [["te-fp8:mxfp8", "unsupported [a]"]]
        assert "seed 0, on p5en (NVIDIA H100 80GB HBM3), p5 (" in said(FIRST, OTHER)[0]
        *_, rows = tables(record(row(), instance="p5"), record(row(), instance="p4d", history=history(measured=True)))
        assert rows[1][:2] == ["delayed, max of 16", "simulation"]
        assert rows[1][2:5] == rows[1][5:] == ["1", "9.7e-01", "3"]
        assert [one[2:5] for one in rows[4:]] == [["-"] * 3] * 3, "of the record that did not try"

    @pytest.mark.parametrize(
        ("first", "second", "ratios"),
        [
            (0.0, 0.0, ["1.00x"]),
            (0.0, 0.1, []),
            (0.1, 0.0, ["0.00x"]),
            (0.02, 0.03, ["1.50x"]),
            (0.02, 0.01, ["0.50x"]),
        ],
    )
    def test_a_ratio_is_the_error_over_the_firsts(self, first, second, ratios):
        [found], _jump = tables(record(row(relative_error=first)), record(row(relative_error=second), instance="p4d"))
        assert found[5:] == ratios

    def test_a_refusal_has_a_row_of_its_own(self):
        stopped = refused("te-fp8:delayed", "overflow", "failed", layer="linear", input="outlier")
        first = record(row(name="normal"), row(name="outlier"), instance="p5")
        linear, not_run, _jump = tables(first, record(row(name="normal"), stopped, refused(), instance="p4d"))
        assert linear[1:] == [
            ["outlier", "te-fp8:delayed", "output", "3.9e-02", "-", "-"],
            ["", "", "-", "-", "failed [a]", "-"],
        ]
        assert not_run == [["te-fp8:mxfp8", "unsupported [b]"]]

    def test_other_work_has_tables_of_its_own(self):
        other = record(row(), instance="p4d", fingerprint={"kind": "numerics", "width": 64})
        found = document([FIRST, other, OTHER])
        assert found.blocks == document([FIRST, OTHER]).blocks + document([other]).blocks
        assert found.figures == ()


@pytest.mark.parametrize("count", [1, 2])
def test_a_terminal_of_80_columns_shows_every_name_and_number(count, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    modes = ("torchao-float8:rowwise_with_gw_hp", "te-fp8:delayed")
    rows = [row(mode, "linear", name, tensor) for mode in modes for name in INPUTS for tensor in TENSORS]
    print(render(document([record(*rows, instance=name) for name in ("p5en", "p5")[:count]]), "terminal"))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("rowwise_with_gw_hp" in line for line in lines)
    assert sum("3.9e-02  3.9e-02" in line for line in lines) == {1: 6, 2: 18}[count], "one table"


@pytest.mark.slow
class TestFigures:
    def texts(self, draw, made, folder):
        """What an SVG says."""
        draw(made, folder / "one.svg")
        return {node.text for node in ElementTree.parse(folder / "one.svg").iter("{http://www.w3.org/2000/svg}text")}

    def test_every_panel_mode_and_input_is_named_and_nothing_that_was_left_out(self, tmp_path):
        found = self.texts(error_dots, record(), tmp_path)
        assert {"linear: output", "linear: input gradient", "block: weight gradient"} <= found
        assert {"baseline-bf16", "te-fp8:delayed", "torchao-float8", "tensorwise"} <= found
        assert {"normal", "heavy-tailed", "outlier", "hollow: the same, moved to values that fp8 has"} <= found
        assert "te-fp8:mxfp8" not in found
        found = self.texts(error_dots, record(*(row(tensor=tensor) for tensor in TENSORS)), tmp_path)
        assert not found & {"block: output", "outlier", "hollow: the same, moved to values that fp8 has"}

    @pytest.mark.parametrize("error", [0.0, LEAST * 0.99, LEAST, 0.4, 1.3])
    def test_any_error_has_a_place(self, error, tmp_path):
        made = record(*(row(tensor=tensor, relative_error=error) for tensor in TENSORS))
        found = self.texts(error_dots, made, tmp_path)
        assert {"0.001", "0.01", "0.1"} <= found
        assert ("1" in found) == (error > 0.7)

    def test_the_jump_names_its_scalings_and_its_size(self, tmp_path):
        found = self.texts(jump_lines, record(), tmp_path)
        assert {"the tensor", "delayed, max of 1024", "delayed, max of 16", "delayed, most recent", "current"} <= found
        assert {"values that saturate, %", "relative error of the cast"} <= found
        assert "dots: Transformer Engine" not in found
        assert "dots: Transformer Engine" in self.texts(jump_lines, record(measured=True), tmp_path)
