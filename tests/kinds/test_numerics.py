"""`fp8bench numerics`: what it prepares, the record that comes of it, and what is shown: errors of one record and of
several side by side, the jump, the figures, and that machines get every number.
"""

import csv
import io
import json

import pytest
from report.made_numerics import DOWN_AT, STEPS, history, record, refused, row

from fp8bench.config.options import read
from fp8bench.kinds import numerics as measuring
from fp8bench.kinds.numerics import (
    KIND,
    LEAST,
    NumericsRecord,
    NumericsRequest,
    error_dots,
    jump_lines,
    measure,
    prepare,
)
from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import this_machines_identity
from fp8bench.schema.errors import UsageError
from fp8bench.schema.numerics import INPUTS, LAYERS, TENSORS
from fp8bench.schema.record import METHOD_VERSION
from fp8bench.tables.document import Heading, Note, Sentence, Table
from fp8bench.tables.render import render

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def prepared(tmp_path, *modes, **words):
    return prepare(read(NumericsRequest, {"results_dir": tmp_path, "modes": modes, **words}, "numerics"), NO_GPU)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    words = {"layers": ("linear",), "inputs": ("normal",), "width": "32", "seed": "7", "name": "box-7"}
    return measure(prepared(folder, "baseline-bf16", "te-fp8", **words), lambda _stage: None)


class TestPrepare:
    def test_everything_by_default_the_yardsticks_first(self, tmp_path):
        config = prepared(tmp_path).config
        torchao = [f"torchao-float8:{recipe}" for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp")]
        te = [f"te-fp8:{recipe}" for recipe in ("delayed", "current", "block", "mxfp8")]
        assert config.modes == ("baseline-fp32", "baseline-bf16", *torchao, *te)
        assert (config.layers, config.inputs) == (LAYERS, INPUTS)
        assert (config.device, config.width, config.tokens, config.seed) == ("cpu", 64, 64, 0)

    def test_a_gpu_has_its_own_sizes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(measuring, "this_machine", lambda _environ: Machine(("NVIDIA H200",), None, 8))
        found = prepared(tmp_path)
        assert (found.config.device, found.config.width, found.config.tokens) == ("cuda", 1280, 2048)
        assert found.instance.key == "custom-1x-nvidia-h200"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ({"width": "8"}, "--width: invalid value '8': .* greater than or equal to 16"),
            ({"width": "1600000"}, "--width: .* the most is 65,536, since"),
            ({"layers": ("block",), "inputs": ("normal-exact",)}, "inputs of the linear layer alone"),
        ],
        ids=str,
    )
    def test_a_wrong_word_is_wrong_usage(self, tmp_path, words, said):
        with pytest.raises(UsageError, match=said):
            prepared(tmp_path, **words)


@pytest.mark.slow
class TestRecord:
    def test_says_what_was_done_where_and_when(self, made):
        assert (made.kind, made.status, made.source, made.instance) == ("numerics", "ok", "measured", "cpu")
        assert made.run_id.startswith(f"{made.created_utc:%Y%m%dT%H%M%SZ}-numerics-")
        same = {"width": 32, "tokens": 64, "seed": 7, "method_version": METHOD_VERSION}
        assert made.fingerprint == {"kind": "numerics", **same}
        assert made.environment.versions["torchao"]
        assert (made.machine, made.machine.label) == (this_machines_identity("box-7"), "box-7")
        rows = [("te-fp8:delayed", "unsupported", None), *(("baseline-bf16", "ok", tensor) for tensor in TENSORS)]
        assert [(row.mode, row.status, row.tensor) for row in made.rows] == rows
        assert len(made.history.traces) == 4

    @pytest.mark.parametrize(
        ("statuses", "code", "named"), [(("ok", "unsupported"), 0, 3), (("ok", "failed", "invalid"), 5, 5)]
    )
    def test_the_exit_code_is_that_of_its_rows_statuses_and_of_the_modes_named(self, made, statuses, code, named):
        """Of which statuses it is which, is in tests/launch/test_session.py."""
        found = made.model_copy(update={"rows": tuple(refused(status=status) for status in statuses)})
        assert KIND.exit_code(found, NumericsRequest()) == code
        assert KIND.exit_code(found, NumericsRequest(modes=("te-fp8",))) == named

    def test_a_status_that_its_rows_belie_is_refused(self, made):
        whole = {**made.model_dump(), "rows": [refused().model_dump()]}
        with pytest.raises(ValueError, match="ok where one of its rows is"):
            NumericsRecord.model_validate(whole)


def document(records):
    return KIND.document(records, None)


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
        linear, block, _jump = tables(record())
        assert [one[0] for one in linear[::3]] == list(INPUTS)
        assert [one[1] for one in linear[:3]] == ["baseline-bf16", "torchao-float8:tensorwise", "te-fp8:delayed"]
        assert (len(linear), len(block)) == (3 * len(INPUTS), 3 * 3)
        assert "te-fp8:mxfp8: unsupported: it needs another GPU." in said(record())

    def test_reasons_stand_below_and_equal_ones_once(self):
        lost = refused("te-fp8:delayed", "overflow", "invalid", layer="linear", input="outlier")
        nan = refused("te-fp8:delayed", "output is not finite", "invalid", layer="linear", input="outlier-exact")
        nan = nan.model_copy(update={"tensor": "output"})
        rows = [row(), lost, nan, refused("te-fp8:block"), refused("te-fp8:mxfp8")]
        rows.append(refused("te-fp8:current", "no kernel"))
        linear, _jump = tables(record(*rows))
        assert [one[2] for one in linear] == ["3.9e-02", "invalid [a]", "invalid"]
        assert {
            "[a] overflow",
            "te-fp8:block, te-fp8:mxfp8: unsupported: it needs another GPU.",
            "te-fp8:current: unsupported: no kernel.",
        } <= set(said(record(*rows)))

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
    def test_a_row_has_each_records_errors_and_the_outputs_ratio_and_a_jump_each_records_answer(self):
        linear, _jump = tables(FIRST, OTHER)
        assert linear == [["normal", "te-fp8:delayed", "3.8e-02", "5.0e-02", "4.2e-02", "1.10x", "5.0e-02"]]
        assert "p5en: te-fp8:mxfp8: unsupported: it needs another GPU." in said(FIRST, OTHER)
        assert "seed 0, on p5en (NVIDIA H100 80GB HBM3), p5 (" in said(FIRST, OTHER)[0]
        *_, rows = tables(record(row(), instance="p5"), record(row(), instance="p4d", history=history(measured=True)))
        assert rows[1][:2] == ["delayed, max of 16", "simulation"]
        assert rows[1][2:5] == rows[1][5:] == ["1", "9.7e-01", "3"]
        assert [one[2:5] for one in rows[4:]] == [["-"] * 3] * 3, "of the record that did not try"

    @pytest.mark.parametrize(
        ("first", "second", "ratios"),
        [(0.0, 0.0, ["1.00x"]), (0.0, 0.1, []), (0.1, 0.0, ["0.00x"]), (0.02, 0.03, ["1.50x"])],
    )
    def test_a_ratio_is_the_error_over_the_firsts(self, first, second, ratios):
        [found], _jump = tables(record(row(relative_error=first)), record(row(relative_error=second), instance="p4d"))
        assert found[4:] == ratios

    def test_a_refusal_stands_where_the_error_would(self):
        stopped = refused("te-fp8:delayed", "overflow", "failed", layer="linear", input="outlier")
        first = record(row(name="normal"), row(name="outlier"), instance="p5")
        linear, _jump = tables(first, record(row(name="normal"), stopped, refused(), instance="p4d"))
        assert linear[1] == ["outlier", "te-fp8:delayed", "3.9e-02", "failed [a]", "-"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_terminal_of_80_columns_shows_every_name_and_number(count, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    modes = ("torchao-float8:rowwise_with_gw_hp", "te-fp8:delayed")
    rows = [row(mode, "linear", name, tensor) for mode in modes for name in INPUTS for tensor in TENSORS]
    print(render(document([record(*rows, instance=name) for name in ("p5en", "p5")[:count]]), "terminal"))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("rowwise_with_gw_hp" in line for line in lines)
    assert sum("3.9e-02  3.9e-02" in line for line in lines) == 6, "one table"


class TestFigures:
    def test_every_panel_mode_and_input_is_named_and_nothing_that_was_left_out(self):
        first, second = error_dots(record()).panels
        titles = [f"{layer}: {name}" for layer in LAYERS for name in ("output", "input gradient", "weight gradient")]
        assert [panel.title for panel in (*first, *second)] == titles
        assert first[0].names == ["baseline-bf16", "torchao-float8\ntensorwise", "te-fp8:delayed"]
        hollow = "hollow: the same, moved to values that fp8 has"
        assert [one.label for one in first[0].series if one.label] == ["normal", "heavy-tailed", "outlier", hollow]
        [panels] = error_dots(record(*(row(tensor=tensor) for tensor in TENSORS))).panels
        assert [one.label for one in panels[0].series if one.label] == ["normal"]

    @pytest.mark.parametrize("error", [0.0, LEAST * 0.99, LEAST, 0.4, 1.3])
    def test_any_error_has_a_place(self, error):
        rows = [row(name=name, relative_error=error) for name in INPUTS]
        [[panel, *_]] = error_dots(record(*rows)).panels
        places = [x for one in panel.series for x, _ in one.points]
        assert len(places) == len(INPUTS)
        assert panel.within[0] < min(places) <= max(places) < panel.within[1]

    def test_the_jump_names_its_scalings_and_its_size(self):
        [above], [middle], [below] = jump_lines(record(measured=True)).panels
        assert [one.label for one in above.series] == [
            *("delayed, max of 1024", "delayed, max of 16", "delayed, most recent", "current", "the tensor"),
            *["dots: Transformer Engine"] * 3,
        ]
        assert (middle.title, below.title) == ("values that saturate, %", "relative error of the cast")
        assert max(share for _, share in middle.series[0].points) == pytest.approx(96, abs=1)
        [[above], *_] = jump_lines(record()).panels
        assert above.series[-1].label == "the tensor"
