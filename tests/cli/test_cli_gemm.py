"""`fp8bench gemm` as its users call it: what is printed where, what is kept, and what is refused."""

import json
from dataclasses import replace
from functools import partial

import pytest
from calling import invoked
from report.made_gemm import gemm_record, sweep_record

from fp8bench.kinds import gemm
from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.kinds.numerics.measure import NumericsRecord
from fp8bench.records.named import by_id, find_kept, names_a_file
from fp8bench.records.results import write
from fp8bench.schema.errors import UsageError


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call the command in a folder of its own, without GPUs; an error of ours is raised here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    return partial(invoked, "gemm")


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


@pytest.mark.slow
def test_products_are_measured_printed_and_kept(call, tmp_path, monkeypatch):
    monkeypatch.setattr("fp8bench.numerics.gemm.bench.CEILING_SIZES", {"cpu": (16, 32)})
    done = call("--shape", "32,16,48", "--precision", "fp8-rowwise", "--seconds", "0.0001")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].startswith("GEMMs, on cpu (CPU);")
    assert "32 x 16 x 48" in done.stdout
    assert "fp8 is emulated on cpu" in done.stdout
    assert "fp8bench: 1 of 1: 32 x 16 x 48\n" in done.stderr
    (path,) = (tmp_path / "results" / "cpu").glob("*.json")
    assert f"fp8bench: kept as results/cpu/{path.name}\n" in done.stderr
    assert GemmRecord.model_validate_json(path.read_text()).kind == "gemm"


@pytest.mark.parametrize(
    ("form", "begins"),
    [("table", "vit-huge, batch 64"), ("markdown", "vit-huge, batch 64"), ("csv", "run_id,"), ("json", "[\n")],
)
def test_every_format_goes_to_stdout_and_nothing_else_does(call, measures, form, begins):
    record = gemm_record(warnings=("busy GPU: 1.0 GiB",))
    measures(record)
    done = call("--format", form)
    assert done.stdout.startswith(begins)
    kept = f"results/{record.instance}/{record.run_id}.json"
    lines = ["1 of 1: made up", "warning: busy GPU: 1.0 GiB", f"kept as {kept}"]
    assert sorted(done.stderr.splitlines()) == sorted(f"fp8bench: {line}" for line in lines)
    if form == "json":
        assert json.loads(done.stdout)[0]["workload"] == "vit-huge"


def test_flags_reach_what_is_measured(call, measures):
    asked = measures(sweep_record())
    flags = "--sweep --shape 64x64x64 --seed 3 --seconds 0.2 --rounds 2 --compiled-casts --precision bf16"
    call(*flags.split())
    (config,) = asked
    assert (config.sweep, config.seed, config.seconds, config.rounds, config.compiled_casts) == (True, 3, 0.2, 2, True)
    assert (config.precisions, str(config.shapes[0])) == (("bf16",), "64 x 64 x 64")


@pytest.fixture
def products(tmp_path):
    """Two records of products, in a folder of results."""
    records = [gemm_record(run_id="20260501T100000Z-a"), sweep_record(run_id="20260502T100000Z-b")]
    return tmp_path, records, [write(record, tmp_path) for record in records]


def test_a_record_is_named_by_its_file_its_id_or_how_that_begins_and_what_names_none_is_told(products):
    folder, (first, _), (path, _) = products
    for name in (str(path), first.run_id, "20260501"):
        assert find_kept(name, folder, GemmRecord) == first
    folder, (first, _), (path, _) = products
    for name, where, kind, said in (
        ("202605", folder, GemmRecord, f"2 run ids begin with '202605'. Give more of it: {first.run_id}, "),
        ("2025", folder, GemmRecord, f"no file is called '2025'.* The latest are: {first.run_id}, "),
        ("2025", folder / "elsewhere", GemmRecord, "keeps none of its kind: measure one first"),
        (str(path), folder, NumericsRecord, "is a record of kind gemm, not numerics"),
        (str(folder / "missing.json"), folder, GemmRecord, r"cannot read .*missing\.json: No such file"),
    ):
        with pytest.raises(UsageError, match=said):
            find_kept(name, where, kind)


def test_an_id_that_others_begin_with_is_itself_and_a_path_is_a_path_even_where_nothing_is(tmp_path):
    assert by_id("a", {"a": 1, "ab": 2, "abc": 3}) == 1
    assert by_id("d", {"a": 1, "ab": 2, "abc": 3}) is None
    with pytest.raises(UsageError, match=r"5 run ids begin with 'b'. Give more of it: b1, b2, b3, \.\.\."):
        by_id("b", dict.fromkeys(["a", "b1", "b2", "b3", "b4", "b5"], 1))
    (tmp_path / "trace").touch()
    named = {"one.json": True, "one.json.gz": True, "20260501": False, str(tmp_path / "trace"): True}
    assert {name: names_a_file(name) for name in named} == named


@pytest.mark.slow
def test_kept_products_are_shown_and_drawn_and_nothing_is_measured(products, monkeypatch):
    monkeypatch.setattr(gemm, "KIND", replace(gemm.KIND, measure=lambda *_: pytest.fail("measured")))
    folder, _, (path, _) = products
    done = invoked("gemm", "--record", path, "--results-dir", folder, "--plot", folder / "map.png")
    assert done.exit_code == 0
    assert done.stdout.startswith("vit-huge, batch 64, on custom-1x-nvidia-h200")
    assert done.stderr.endswith("map.png\n")
    assert (folder / "map.png").stat().st_size > 10_000
