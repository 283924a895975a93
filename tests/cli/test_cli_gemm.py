"""`fp8bench gemm` as its users call it: what is printed where, what is kept, and what is refused."""

import json
from dataclasses import replace
from functools import partial

import pytest
from calling import invoked
from report.made_gemm import gemm_record, sweep_record

from fp8bench.kinds import gemm
from fp8bench.kinds.gemm.measure import GemmRecord
from fp8bench.schema.gemm import ProductTimings, Timing


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
    record = gemm_record()
    measures(record)
    done = call("--format", form)
    assert done.stdout.startswith(begins)
    kept = f"results/{record.instance}/{record.run_id}.json"
    assert done.stderr == f"fp8bench: 1 of 1: made up\nfp8bench: kept as {kept}\n"
    if form == "json":
        assert json.loads(done.stdout)[0]["workload"] == "vit-huge"


def test_warnings_go_to_stderr(call, measures):
    measures(gemm_record(warnings=("busy GPU: 1.0 GiB",)))
    assert "fp8bench: warning: busy GPU: 1.0 GiB\n" in call().stderr


@pytest.mark.slow
@pytest.mark.parametrize("made", [gemm_record, sweep_record])
def test_a_plot_is_drawn(call, measures, tmp_path, made):
    measures(made())
    done = call("--plot", "products.svg")
    assert done.stderr.endswith("fp8bench: drawn as products.svg\n")
    assert (tmp_path / "products.svg").read_text().startswith("<?xml")


def test_flags_reach_what_is_measured(call, measures):
    asked = measures(sweep_record())
    call(
        *("--sweep", "--shape", "64x64x64", "--seed", "3", "--seconds", "0.2", "--rounds", "2"),
        *("--compiled-casts", "--precision", "bf16"),
    )
    (config,) = asked
    assert config.rounds == 2
    assert (config.sweep, config.seed, config.seconds, config.compiled_casts) == (True, 3, 0.2, True)
    assert (config.precisions, str(config.shapes[0])) == (("bf16",), "64 x 64 x 64")


def with_status(status):
    record = sweep_record()
    wrong = Timing(precision="fp8-rowwise", status=status, reason="for a reason")
    one = record.products[0]
    products = (ProductTimings(product=one.product, timings=(one.timings[0], wrong)),)
    return record.model_copy(update={"products": products})


@pytest.mark.parametrize(("status", "code"), [("invalid", 4), ("unsupported", 3)])
def test_the_exit_code_says_how_it_went(call, measures, status, code):
    measures(with_status(status))
    done = call()
    assert done.exit_code == code
    assert "[a] for a reason" in done.stdout
