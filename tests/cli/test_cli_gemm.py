"""`fp8bench gemm` as its users call it: what is printed where, what is kept, and what is refused."""

from dataclasses import replace
from functools import partial

import pytest
from report.made_gemm import cube, gemm_record, sweep_record, timing
from report.made_numerics import record as numerics_record
from report.made_numerics import row

from fp8bench.kinds import gemm, numerics
from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.records.named import by_id, find_kept, names_a_file
from fp8bench.records.results import write
from fp8bench.schema.errors import UsageError
from fp8bench.schema.gemm import Timing


@pytest.fixture
def call(command):
    return partial(command, "gemm")


@pytest.fixture
def measures(monkeypatch):
    """What is measured is made up; returns what was asked for."""
    asked = []

    def use(record):
        def measure(prepared, told):
            asked.append(prepared.config)
            told("1 of 1: made up")
            return record

        monkeypatch.setattr(gemm, "KIND", replace(gemm.KIND, measure=measure))
        return asked

    return use


@pytest.mark.parametrize(
    ("form", "begins"),
    [("table", "vit-huge, batch 64"), ("markdown", "vit-huge, batch 64"), ("csv", "run_id,"), ("json", "[\n")],
)
def test_every_format_goes_to_stdout_and_nothing_else_does(call, measures, form, begins):
    record = gemm_record(warnings=("busy GPU: 1.0 GiB",))
    measures(record)
    done = call("--format", form)
    assert done.stdout.startswith(begins)
    lines = ["1 of 1: made up", "warning: busy GPU: 1.0 GiB", f"kept as results/{record.instance}/{record.run_id}.json"]
    assert sorted(done.stderr.splitlines()) == sorted(f"fp8bench: {line}" for line in lines)


def test_flags_reach_what_is_measured(call, measures):
    asked = measures(sweep_record())
    flags = "--sweep --shape 64x64x64 --seed 3 --seconds 0.2 --rounds 2 --compiled-casts --precision bf16"
    call(*flags.split())
    (config,) = asked
    assert (config.sweep, config.seed, config.seconds, config.rounds, config.compiled_casts) == (True, 3, 0.2, 2, True)
    assert (config.precisions, str(config.shapes[0])) == (("bf16",), "64 x 64 x 64")


def test_the_exit_code_says_how_it_went(call, measures):
    wrong = Timing(precision="fp8-rowwise", status="invalid", reason="for a reason")
    measures(sweep_record(products=(cube(timing("bf16", 1e-3), wrong),)))
    assert "[a] for a reason" in call(code=4).stdout


def test_a_record_is_named_by_its_file_its_id_or_how_that_begins_and_what_names_none_or_several_is_told(tmp_path):
    first, last = gemm_record(run_id="20260501T100000Z-a"), sweep_record(run_id="20260502T100000Z-b")
    path, _ = (write(record, tmp_path) for record in (first, last))
    for name in (str(path), first.run_id, "20260501"):
        assert find_kept(name, tmp_path, GemmRecord) == first
    for name, where, kind, said in (
        ("202605", tmp_path, GemmRecord, f"2 run ids begin with '202605'. Give more of it: {first.run_id}, "),
        ("2025", tmp_path, GemmRecord, f"no file is called '2025'.* The latest are: {first.run_id}, "),
        ("2025", tmp_path / "elsewhere", GemmRecord, "keeps none of its kind: measure one first"),
        (str(path), tmp_path, NumericsRecord, "is a record of kind gemm, not numerics"),
        (str(tmp_path / "missing.json"), tmp_path, GemmRecord, r"cannot read .*missing\.json: No such file"),
    ):
        with pytest.raises(UsageError, match=said):
            find_kept(name, where, kind)


def test_an_id_that_others_begin_with_is_itself_and_a_path_is_one_even_where_nothing_is(tmp_path):
    assert by_id("a", {"a": 1, "ab": 2, "abc": 3}) == 1
    assert by_id("d", {"a": 1, "ab": 2, "abc": 3}) is None
    with pytest.raises(UsageError, match=r"5 run ids begin with 'b'. Give more of it: b1, b2, b3, \.\.\."):
        by_id("b", dict.fromkeys(["a", "b1", "b2", "b3", "b4", "b5"], 1))
    (tmp_path / "trace").touch()
    named = {"one.json": True, "one.json.gz": True, "20260501": False, str(tmp_path / "trace"): True}
    assert {name: names_a_file(name) for name in named} == named


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "begins", "plots"),
    [
        (gemm_record(), "vit-huge, batch 64, on custom-1x-nvidia-h200", {"--plot": "map.png"}),
        (numerics_record(row()), "numerics, width 1280", {"--plot": "errors.png", "--history-plot": "jump.png"}),
    ],
    ids=["products", "errors"],
)
def test_what_was_kept_is_shown_and_drawn_and_nothing_is_measured(
    command, tmp_path, monkeypatch, record, begins, plots
):
    for kind in (gemm, numerics):
        monkeypatch.setattr(kind, "KIND", replace(kind.KIND, measure=lambda *_: pytest.fail("measured")))
    drawn = [word for flag, name in plots.items() for word in (flag, tmp_path / name)]
    done = command(record.kind, "--record", write(record, tmp_path), "--results-dir", tmp_path, *drawn)
    assert done.stdout.startswith(begins)
    assert done.stderr.endswith(f"{[*plots.values()][-1]}\n")
    assert all((tmp_path / name).stat().st_size > 10_000 for name in plots.values())
