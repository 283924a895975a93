"""What `fp8bench gemm` makes of words and of the machine, and the record that it keeps."""

import builders
import pytest
from builders import evidence, machine_called, measured, place, summary

from fp8bench.kinds.gemm import measure as measuring
from fp8bench.kinds.gemm.measure import (
    GemmRecord,
    GemmRequest,
    exit_code,
    measure,
    parse_precisions,
    parse_shape,
    prepare,
)
from fp8bench.machine.gpus import Machine
from fp8bench.machine.identity import this_machines_identity
from fp8bench.records import results
from fp8bench.schema.errors import ModeUnavailable, UsageError
from fp8bench.schema.gemm import PRECISIONS, Product, ProductTimings, Shape, Timing

CPU = Machine(gpus=(), product_name=None, cpu_count=2)
H200 = Machine(gpus=("NVIDIA H200",), product_name=None, cpu_count=16)
SMALL = Shape(m=32, n=16, k=48)


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def machine(monkeypatch):
    """Say which machine this is, and whether torch can use its GPU."""

    def is_now(found, cuda=True):
        monkeypatch.setattr(measuring, "this_machine", lambda environ: found)
        monkeypatch.setattr(
            measuring, "require_idle", lambda environ, rank, allow: ("busy GPU: 1.0 GiB",) if allow else ()
        )
        monkeypatch.setattr(measuring, "_torch_sees_cuda", lambda: cuda)

    is_now(CPU)
    return is_now


@pytest.fixture
def request_of(tmp_path):
    def made(**changes):
        return GemmRequest(**{"results_dir": tmp_path / "results", **changes})

    return made


@pytest.fixture
def small_ceilings(monkeypatch):
    monkeypatch.setattr("fp8bench.numerics.gemm.bench.CEILING_SIZES", {"cpu": (16, 32)})


@pytest.mark.parametrize("text", ["12608,5120,1280", "12608x5120x1280", " 12608 X 5120, 1280 "])
def test_a_shape_is_m_n_k(text):
    assert parse_shape(text) == Shape(m=12608, n=5120, k=1280)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64,64", "is not three whole numbers"),
        ("64,64,64,64", "is not three whole numbers"),
        ("64,64,many", "is not three whole numbers"),
        ("64,64,6.4", "is not three whole numbers"),
        ("64,64,-64", "is not three whole numbers"),
        ("64,,64", "is not three whole numbers"),
        ("64,64,²", "is not three whole numbers"),
        (f"64,64,{'9' * 5000}", "is too large: the most is 2,147,483,647, since"),
        ("64,64,2147483648", "is too large"),
        ("64,0,64", "has a dimension of 0"),
    ],
)
def test_what_is_no_shape_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_shape(text)


def test_bf16_is_always_measured_and_all_are_without_a_name():
    assert parse_precisions(()) == PRECISIONS
    assert parse_precisions(("fp8-rowwise",)) == ("bf16", "fp8-rowwise")
    assert parse_precisions(("bf16",)) == ("bf16",)


def test_an_unknown_precision_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"Did you mean 'fp8-rowwise'\?"):
        parse_precisions(("fp8-rowise",))


def test_the_machine_chooses_workload_and_batch(machine, request_of):
    config = prepare(request_of(), {}).config
    assert (config.device, config.workload, config.batch_size, config.rounds) == ("cpu", "vit-micro", 16, 1)
    machine(H200)
    config = prepare(request_of(), {}).config
    assert (config.device, config.workload, config.batch_size) == ("cuda", "vit-huge", 64)
    assert (config.precisions, config.seconds, config.seed, config.rounds) == (PRECISIONS, 0.1, 0, 3)


def test_shapes_have_no_workload(machine, request_of):
    config = prepare(request_of(shapes=("64,64,64",), sweep=True, seconds="0.5", seed="7"), {}).config
    assert (config.workload, config.batch_size, config.sweep) == (None, None, True)
    assert (config.shapes, config.seconds, config.seed) == ((Shape(m=64, n=64, k=64),), 0.5, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"batch_size": "many"}, "--batch-size 'many' is not a whole number of at least 1"),
        ({"batch_size": "0"}, "--batch-size '0' is not a whole number"),
        ({"rounds": "0"}, "--rounds '0' is not a whole number of at least 1"),
        ({"seed": "-1"}, "--seed '-1' is not a whole number of at least 0"),
        ({"seed": "1.5"}, "--seed '1.5' is not a whole number"),
        ({"seed": "9" * 5000}, r"--seed '9{40}\.\.\.' is too large: the most is 4,294,967,295, since"),
        ({"batch_size": "99999999999999999999"}, "--batch-size '99999999999999999999' is too large"),
        ({"rounds": "1001"}, "--rounds '1001' is too large: the most is 1,000, since"),
        ({"seconds": "1e99"}, "--seconds '1e99' is too large: the most is 600, since"),
        ({"seconds": "0"}, "--seconds '0' is not a number above 0"),
        ({"seconds": "nan"}, "--seconds 'nan' is not a number above 0"),
        ({"seconds": "inf"}, "--seconds 'inf' is not a number above 0"),
        ({"seconds": "soon"}, "--seconds 'soon' is not a number above 0"),
        ({"workload": "vit-hug"}, "unknown workload 'vit-hug'. Did you mean 'vit-huge'?"),
        ({"workload": "vit-micro", "sweep": True}, "both --workload and --sweep were given"),
        ({"workload": "vit-micro", "shapes": ("64,64,64",)}, "both --workload and --shape were given"),
        ({"batch_size": "4", "sweep": True}, "--batch-size belongs to a workload"),
        ({"instance": "p55"}, "unknown instance 'p55'"),
        (
            {"shapes": ("64,40,64",)},
            "has N = 40, which is not divisible by 16, as fp8 GEMMs need. Pad it: --shape 64,48,64 would do",
        ),
        ({"shapes": ("63,1000,1279",)}, "has M = 63, .* Pad it: --shape 64,1008,1280 would do"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(machine, request_of, words, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        prepare(request_of(**words), {})


def test_bf16_alone_takes_any_shape(machine, request_of):
    assert prepare(request_of(shapes=("63,40,7",), precisions=("bf16",)), {}).config.shapes


def test_a_named_gpu_instance_is_wanted_and_not_there(machine, request_of):
    with pytest.raises(ModeUnavailable, match="this machine shows no GPU"):
        prepare(request_of(instance="p5"), {})


def test_a_torch_that_cannot_use_the_gpu_measures_the_cpu_and_says_so(machine, request_of):
    machine(H200, cuda=False)
    prepared = prepare(request_of(), {})
    assert (prepared.config.device, prepared.instance.key) == ("cpu", "cpu")
    assert prepared.warnings == ("the driver shows NVIDIA H200, and this torch cannot use it: measured on the CPU",)


def test_unless_the_gpus_instance_was_named(machine, request_of):
    machine(H200, cuda=False)
    (name,) = _instances_with_an_h200(1)
    with pytest.raises(ModeUnavailable, match="the driver shows NVIDIA H200, and this torch cannot use it"):
        prepare(request_of(instance=name), {})


def _instances_with_an_h200(count):
    from fp8bench.pricing.catalog import load

    catalog = load()
    gpu = catalog.gpu_by_product("NVIDIA H200").name
    return [key for key, instance in catalog.instances.items() if instance.gpu == gpu][:count]


def test_a_busy_gpu_is_marked_where_it_is_allowed(machine, request_of):
    machine(H200)
    assert prepare(request_of(allow_busy=True), {}).warnings == ("busy GPU: 1.0 GiB",)


def measured_now(prepared):
    told = []
    record = measure(prepared, told.append)
    return record, results.write(record, prepared.results_dir), told


@pytest.mark.usefixtures("small_ceilings")
def test_a_record_is_kept_and_read_back(machine, request_of, tmp_path):
    prepared = prepare(request_of(shapes=("32,16,48",), seconds="0.0001", precisions=("fp8-rowwise",)), {})
    record, path, told = measured_now(prepared)
    assert path.parent == tmp_path / "results" / "cpu"
    assert GemmRecord.model_validate_json(path.read_text()) == record
    assert not results.read(tmp_path / "results", ["cpu"])
    assert "gemm-shapes" in record.run_id
    assert told == ["large square GEMMs, for the ceilings", "1 of 1: 32 x 16 x 48"]
    ((one,), (ceiling,)) = record.products, record.ceilings
    assert (one.product.shape, one.product.layers) == (SMALL, ())
    assert [t.precision for t in one.timings] == ["bf16", "fp8-rowwise", "fp8-rowwise"]
    assert (ceiling.arithmetic, record.flush_bytes) == ("bf16", None)
    assert record.fingerprint["cache"] == "warm"
    assert exit_code(record, GemmRequest()) == 0


@pytest.mark.usefixtures("small_ceilings")
def test_a_workloads_record_holds_its_layers(machine, request_of):
    prepared = prepare(request_of(seconds="0.0001", precisions=("bf16",), batch_size="2"), {})
    record, _, _ = measured_now(prepared)
    assert len(record.products) == 15
    assert record.fingerprint["workload"] == "vit-micro"
    assert record.fingerprint["sizes"]["embed_dim"] == 64
    assert record.scaled_mm is None
    assert record.bounds == ()


@pytest.mark.usefixtures("small_ceilings")
def test_kept_runs_bound_the_step(machine, request_of, monkeypatch, tmp_path):
    """On a machine whose kernel claims to be no emulation, and whose runs claim to be of a GPU. A later run of another
    machine, and one with other software, do not count.
    """
    import dataclasses

    import torch

    from fp8bench.worker.environment import environment

    here = {"machine": this_machines_identity(), "environment": environment(torch.device("cpu"))}
    from fp8bench.numerics.gemm import bench, bound

    found = bench.find_kernel
    monkeypatch.setattr(bench, "find_kernel", lambda device: dataclasses.replace(found(device), emulated=False))
    settings = {"workload": "vit-micro", "world_size": 1, "batch_size": 16}
    baseline = measured("cpu", settings=settings, summary=summary(5.0), session=place(), **here)
    fp8 = measured(
        *("cpu", "te-fp8", "delayed"),
        settings=settings,
        summary=summary(4.0),
        evidence=evidence(fp8=True),
        minutes=1,
        **here,
    )
    elsewhere = measured(
        "cpu", settings=settings, summary=summary(3.0), minutes=2, **{**here, "machine": machine_called("vendor-b")}
    )
    older = measured(
        "cpu",
        settings=settings,
        summary=summary(2.0),
        minutes=3,
        **{**here, "environment": builders.environment(None)},
    )
    for record in (baseline, fp8, elsewhere, older):
        results.write(record, tmp_path / "results")
    assert bound.BASELINE == "baseline-bf16"
    prepared = prepare(request_of(seconds="0.0001", precisions=("fp8-tensorwise",)), {})
    record, _, _ = measured_now(prepared)
    assert record.machine == here["machine"]
    (bound,) = record.bounds
    assert (bound.baseline_run_id, bound.step_time_s) == (baseline.run_id, 5.0)
    assert [(mode.label, mode.speedup) for mode in bound.modes] == [("te-fp8:delayed", 1.25)]


def test_a_batch_that_fp8_cannot_take_is_refused_before_anything_is_measured(machine, request_of):
    prepared = prepare(request_of(batch_size="3"), {})
    with pytest.raises(UsageError, match="Say --batch-size 16, or --precision bf16 alone"):
        measure(prepared, lambda line: None)


def test_a_shape_beyond_memory_is_refused(machine, request_of):
    prepared = prepare(request_of(shapes=("99999984,99999984,16",)), {})
    with pytest.raises(UsageError, match=r"99999984 x 16 needs .* GiB are free on this host"):
        measure(prepared, lambda line: None)


@pytest.mark.parametrize(
    ("statuses", "wanted"),
    [(("ok", "ok"), 0), (("ok", "invalid"), 4), (("ok", "unsupported"), 0), (("unsupported",), 3), ((), 0)],
)
def test_exit_codes(statuses, wanted):
    def timing(status):
        if status == "ok":
            return Timing(precision="fp8-rowwise", time_s=1e-3)
        return Timing(precision="fp8-rowwise", status=status, reason="for a reason")

    timings = (Timing(precision="bf16", time_s=1e-3), *map(timing, statuses))
    products = (ProductTimings(product=Product(shape=SMALL), timings=timings),)
    assert exit_code(GemmRecord.model_construct(products=products), GemmRequest()) == wanted


def test_a_precision_that_was_named_and_ran_for_no_product_counts_beside_another_that_did():
    timings = (
        Timing(precision="bf16", time_s=1e-3),
        Timing(precision="fp8-tensorwise", time_s=1e-3),
        Timing(precision="fp8-rowwise", status="unsupported", reason="for a reason"),
    )
    record = GemmRecord.model_construct(products=(ProductTimings(product=Product(shape=SMALL), timings=timings),))

    assert exit_code(record, GemmRequest()) == 0
    assert exit_code(record, GemmRequest(precisions=("fp8-tensorwise",))) == 0
    assert exit_code(record, GemmRequest(precisions=("fp8-tensorwise", "fp8-rowwise"))) == 3
