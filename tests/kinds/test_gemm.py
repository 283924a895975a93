"""What `fp8bench gemm` makes of words and of the machine, formats that a user names, and the record that it keeps."""

import dataclasses

import builders
import pytest
from builders import evidence, machine_called, measured, place, summary
from report.made_gemm import cube, timing

from fp8bench.config.options import read
from fp8bench.kinds.gemm import KIND
from fp8bench.kinds.gemm import measure as measuring
from fp8bench.kinds.gemm.measure import GemmRecord, GemmRequest, measure, prepare
from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import this_machines_identity
from fp8bench.pricing.catalog import load
from fp8bench.records import results
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import PAIRS, PRECISIONS, Product, Shape, Timing
from fp8bench.tables.render import render

CPU = Machine(gpus=(), product_name=None, cpu_count=2)
H200 = Machine(gpus=("NVIDIA H200",), product_name=None, cpu_count=16)
ONE = ("32,16,48",)
SHAPE = Shape(m=1280, n=512, k=128)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def machine(monkeypatch):
    """Say which machine this is."""

    def is_now(found):
        monkeypatch.setattr(measuring, "this_machine", lambda environ: found)
        monkeypatch.setattr(
            measuring, "require_idle", lambda environ, rank, allow: ("busy GPU: 1.0 GiB",) if allow else ()
        )

    is_now(CPU)
    return is_now


@pytest.fixture
def prepared(tmp_path, machine):
    return lambda **changes: prepare(read(GemmRequest, {"results_dir": tmp_path / "results", **changes}, "gemm"), {})


@pytest.fixture
def record_of(prepared, monkeypatch):
    """The record of a quick measurement."""
    monkeypatch.setattr("fp8bench.numerics.gemm.bench.CEILING_SIZES", {"cpu": (16, 32)})
    return lambda told=[].append, **words: measure(prepared(seconds="0.0001", **words), told)


@pytest.mark.parametrize(
    ("name", "words", "found"),
    [
        *(("shapes", (text,), (SHAPE,)) for text in ("1280,512,128", "1280x512x128", " 1280 X 512, 128 ")),
        ("precisions", (), PRECISIONS),
        ("precisions", ("fp8-rowwise-fast", "fp8-rowwise"), ("bf16", "fp8-rowwise", "fp8-rowwise-fast")),
        ("pairs", ("e5m2xe4m3", " E4M3 , e4m3 "), (("e4m3", "e4m3"), ("e5m2", "e4m3"))),
        ("pairs", ("all", "e5m2,e4m3"), PAIRS),
    ],
)
def test_shapes_are_m_n_k_and_names_are_read_in_one_order(prepared, name, words, found):
    assert getattr(prepared(**{"shapes": ONE, name: words}).config, name) == found


def test_the_machine_chooses_workload_and_batch(machine, prepared):
    found = prepared().config
    assert (found.device, found.workload, found.batch_size, found.rounds) == ("cpu", "vit-micro", 16, 1)
    machine(H200)
    found = prepared().config
    assert (found.device, found.workload, found.batch_size) == ("cuda", "vit-huge", 64)
    assert (found.precisions, found.seconds, found.seed, found.rounds) == (PRECISIONS, 0.1, 0, 3)
    assert prepared(allow_busy=True).warnings == ("busy GPU: 1.0 GiB",)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            ({"shapes": (text,)}, "is not three whole numbers")
            for text in ("64,64", "64,64,64,64", "64,64,many", "64,64,6.4", "64,64,-64", "64,,64", "64,64,²")
        ),
        ({"shapes": (f"64,64,{'9' * 5000}",)}, "is too large: the most is 2,147,483,647, since"),
        ({"shapes": ("64,64,2147483648",)}, "is too large"),
        ({"shapes": ("64,0,64",)}, "has a dimension of 0"),
        ({"seed": "9" * 5000}, r"--seed: invalid value '9{40}\.\.\.'"),
        ({"seconds": "1e99"}, "--seconds: invalid value '1e99': the most is 600, since"),
        *(({"seconds": word}, f"--seconds: invalid value '{word}'") for word in ("0", "nan", "inf", "soon")),
        ({"workload": "vit-micro", "sweep": True}, "both --workload and --sweep were given"),
        ({"workload": "vit-micro", "shapes": ("64,64,64",)}, "both --workload and --shape were given"),
        ({"batch_size": "4", "sweep": True}, "--batch-size belongs to a workload"),
        ({"shapes": ("64,40,64",)}, "has N = 40, which .*; 48 would be. Pad --shape to multiples"),
        ({"precisions": ("fp8-rowise",)}, r"Did you mean 'fp8-rowwise'\?"),
        ({"shapes": ONE, "pairs": ("e4m3,e5m3",)}, "unknown --pair 'e4m3,e5m3'. Did you mean 'e4m3,e5m2'"),
        ({"pairs": ("all",)}, "--pair belongs to --shape, and a workload has the formats of training"),
        ({"pairs": ("all",), "sweep": True}, "--pair belongs to --shape, and a sweep"),
        ({"shapes": ONE, "pairs": ("all",), "precisions": ("bf16",)}, "--pair is of fp8, and bf16 alone was named"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(prepared, words, said):
    with pytest.raises(UsageError, match=said):
        prepared(**words)


def test_a_torch_that_cannot_use_the_gpu_measures_nothing(machine, record_of, monkeypatch):
    machine(H200)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ModeUnavailable, match=r"torch cannot use it\. .*CUDA_VISIBLE_DEVICES="):
        record_of()


def test_a_record_is_kept_and_read_back(record_of, tmp_path):
    told = []
    record = record_of(told.append, shapes=ONE, precisions=("fp8-rowwise",))
    assert results.read_of_kind(results.write(record, tmp_path / "results"), GemmRecord) == record
    assert not results.read(tmp_path / "results", ["cpu"])
    assert "gemm-shapes" in record.run_id
    assert told == ["large square GEMMs, for the ceilings", "1 of 1: 32 x 16 x 48"]
    ((one,), (ceiling,)) = record.products, record.ceilings
    assert (str(one.product.shape), one.product.layers) == ("32 x 16 x 48", ())
    assert [t.precision for t in one.timings] == ["bf16", "fp8-rowwise", "fp8-rowwise"]
    assert (ceiling.arithmetic, record.flush_bytes, record.fingerprint["cache"]) == ("bf16", None, "warm")
    assert record.fingerprint.keys().isdisjoint({"pairs", "bias", "outputs"})
    assert KIND.exit_code(record, GemmRequest()) == 0


def test_a_workloads_record_holds_its_layers(record_of):
    record = record_of(precisions=("bf16",), batch_size="2")
    assert len(record.products) == 15
    assert (record.fingerprint["workload"], record.fingerprint["sizes"]["embed_dim"]) == ("vit-micro", 64)
    assert (record.scaled_mm, record.bounds) == (None, ())


def test_kept_runs_bound_the_step(record_of, monkeypatch, tmp_path):
    """On a machine whose kernel claims to be no emulation, and whose runs claim to be of a GPU. A later run of another
    machine, and one with other software, do not count.
    """
    import torch

    from fp8bench.numerics.gemm import multiply
    from fp8bench.worker.subject import environment

    # Tests set variables of their own, which count for none here.
    software = environment(torch.device("cpu")).model_copy(update={"variables": {}})
    here = {"machine": this_machines_identity(), "environment": software}
    monkeypatch.setitem(multiply.KERNELS, "cpu", dataclasses.replace(multiply.KERNELS["cpu"], emulated=False))

    def kept(step_s, minutes, *mode, **changes):
        settings = {"workload": "vit-micro", "world_size": 1, "batch_size": 16}
        of = {**here, "settings": settings, "summary": summary(step_s), "minutes": minutes, **changes}
        record = measured("cpu", *mode, **of)
        results.write(record, tmp_path / "results")
        return record

    baseline = kept(5.0, 0, session=place())
    kept(4.0, 1, "te-fp8", "delayed", evidence=evidence(fp8=True))
    kept(3.0, 2, machine=machine_called("vendor-b"))
    kept(2.0, 3, environment=builders.environment(None))
    record = record_of(precisions=("fp8-tensorwise",))
    assert record.machine == here["machine"]
    (bound,) = record.bounds
    assert (bound.baseline_run_id, bound.step_time_s) == (baseline.run_id, 5.0)
    assert [(mode.label, mode.speedup) for mode in bound.modes] == [("te-fp8:delayed", 1.25)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"batch_size": "3"}, "qkv forward has M = 51, .* Say --batch-size 16 where rows .* or --precision bf16"),
        ({"batch_size": "17"}, "has M = 289, .*; 304 would be. Say --batch-size 32"),
        ({"shapes": ("99999984,99999984,16",)}, r"99999984 x 16 needs .* GiB are free on this host"),
    ],
)
def test_what_cannot_be_measured_is_refused_first(record_of, words, said):
    with pytest.raises(UsageError, match=said):
        record_of(**words)


def test_what_stays_bf16_may_have_any_size_and_rows_that_no_batch_mends_are_refused_without_one(record_of, monkeypatch):
    odd = Product(shape=Shape(m=24, n=10, k=32), layers=("queries",), calls_per_step=1)
    for why in ("the head stays bf16", None):
        found = (odd.model_copy(update={"stays_bf16": why}),), ()
        monkeypatch.setattr("fp8bench.numerics.model_facts.linear_gemms", lambda *_, found=found: found)
        if why:
            assert record_of(batch_size="16").products[0].product.stays_bf16 == why
        else:
            with pytest.raises(UsageError, match=r"queries forward has M = 24, .* Say --precision bf16 alone"):
                record_of(batch_size="16")


@pytest.mark.parametrize(
    ("statuses", "named", "wanted"),
    [
        ({"fp8-rowwise": "ok", "fp8-tensorwise": "invalid"}, (), 4),
        ({"fp8-rowwise": "unsupported"}, (), 3),
        ({}, (), 0),
        ({"fp8-tensorwise": "ok", "fp8-rowwise": "unsupported"}, (), 0),
        ({"fp8-tensorwise": "ok", "fp8-rowwise": "unsupported"}, ("fp8-tensorwise",), 0),
        ({"fp8-tensorwise": "ok", "fp8-rowwise": "unsupported"}, ("fp8-tensorwise", "fp8-rowwise"), 3),
    ],
)
def test_exit_codes(statuses, named, wanted):
    of = {name: {"time_s": 1e-3} if status == "ok" else {"reason": "such"} for name, status in statuses.items()}
    timings = (Timing(precision=name, status=status, **of[name]) for name, status in statuses.items())
    record = GemmRecord.model_construct(products=(cube(timing("bf16", 1e-3), *timings),))
    assert KIND.exit_code(record, GemmRequest(precisions=named)) == wanted


def test_named_formats_are_kept_shown_and_part_of_the_fingerprint(record_of, tmp_path):
    record = record_of(shapes=ONE, pairs=("all",), precisions=("fp8-tensorwise",))
    assert KIND.exit_code(record, GemmRequest(precisions=("fp8-tensorwise",))) == 0
    assert results.read_of_kind(results.write(record, tmp_path), GemmRecord) == record
    assert record.fingerprint["pairs"][1] == "e4m3 x e5m2"
    assert [one.product.label for one in record.products] == [" x ".join(pair) for pair in PAIRS]
    shown = render(KIND.document([record], load()), "plain")
    rows = [line for line in shown.splitlines() if "fp8-tensorwise" in line]
    assert len(rows) == len(record.products)
    assert sum("unsupported [a]" in row for row in rows) == 1
    assert "[a] no GPU takes it: cuBLASLt has no GEMM of two e5m2 matrices" in shown
