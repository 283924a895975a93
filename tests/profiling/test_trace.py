"""Reading a trace strictly, keeping one without what names the machine, and its events made into spans: which kernels
are the optimizer's, and which time is an operator's own.
"""

import gzip
import json
from collections import defaultdict

import pytest
from steps_of_vit_huge import DATA

from fp8bench.profiling.kernels import breakdown, cpu_spans, gpu_spans, keep_trace, read_trace
from fp8bench.schema.errors import RunFailed, UsageError

REAL = DATA / "trace-te-fp8.json.gz"
FACTS = {"mode": "te-fp8:delayed", "steps": 1, "device": "cuda", "step_time_s": 0.1}
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7, "correlation": 1}}


@pytest.fixture
def write(tmp_path):
    """Put something into a file that is named as a trace."""

    def to_file(content):
        path = tmp_path / "trace.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return to_file


def test_a_real_trace_of_a_gpu_zipped_or_not_and_where_its_step_went(write):
    trace = read_trace(REAL)
    assert (trace.device, trace.steps, len(trace.spans)) == ("cuda", 1, 3297)
    assert sum(span.duration_s for span in trace.spans if span.in_optimizer) == pytest.approx(5.25e-3, abs=2e-5)
    assert all("multi_tensor_apply" in span.name or "Mem" in span.name for span in trace.spans if span.in_optimizer)
    assert read_trace(write(gzip.decompress(REAL.read_bytes()))) == trace
    profile = breakdown(trace)
    assert {category: round(seconds * 1e3, 1) for category, seconds in profile.by_category.items()} == {
        **{"gemm_fp8": 35.2, "elementwise": 26.9, "cast": 15.8, "attention": 11.6, "copy": 7.7},
        **{"optimizer": 5.3, "gemm_bf16": 0.8},
    }
    assert profile.busy_s == pytest.approx(sum(profile.by_category.values()))
    assert (profile.has_fp8_gemm, profile.kernels[0].calls_per_step) == (True, 128)


def test_a_real_trace_of_a_cpu_and_where_its_steps_went():
    trace = read_trace(DATA / "trace-cpu.json.gz")
    assert (trace.device, trace.steps) == ("cpu", 2)
    assert {"aten::mm", "gloo:all_reduce"} <= {span.name for span in trace.spans}
    assert {span.name for span in trace.spans if span.in_optimizer} >= {"aten::add_", "aten::mul_"}
    profile = breakdown(trace)
    assert (profile.device, next(iter(profile.by_category))) == ("cpu", "gemm_bf16")
    assert 0 < profile.by_category["nccl"] < profile.nccl_s < profile.busy_s
    assert profile.busy_s == pytest.approx(sum(profile.by_category.values()))
    assert not profile.has_fp8_gemm


def test_a_replay_has_every_kernel_and_its_optimizer_though_the_host_launched_one_thing(write):
    """The real trace as it would be of one CUDA graph: one launch on the host, no annotation, the same kernels."""
    document = json.loads(gzip.decompress(REAL.read_bytes()))
    on_gpu = [e for e in document["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [{**event, "args": {**event["args"], "correlation": 1}} for event in on_gpu]
    path = write({**document, "traceEvents": [{"ph": "X", **launch(0, 1, name="cudaGraphLaunch")}, *kernels]})
    launched, replay = read_trace(REAL), read_trace(path)
    assert len(replay.spans) == len(launched.spans)
    found, usual = breakdown(replay), breakdown(launched)
    assert found.busy_s == usual.busy_s
    assert {k.name: k.calls_per_step for k in found.kernels} == {k.name: k.calls_per_step for k in usual.kernels}
    # But for what it copies and fills, which has no name of its own.
    assert found.by_category["optimizer"] == pytest.approx(usual.by_category["optimizer"], rel=0.05)


def of(*events, **facts):
    return {"fp8bench": FACTS | facts, "traceEvents": [*events]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (REAL.read_bytes()[:5000], "is not a whole gzip file"),
        ([], "is not a Chrome trace"),
        ({"fp8bench": FACTS}, "is not a Chrome trace"),
        ({"traceEvents": [KERNEL]}, "KeyError('fp8bench')"),
        (of(KERNEL, steps=0), "0 steps on 'cuda'"),
        (of(KERNEL, device="tpu"), "1 steps on 'tpu'"),
        (of(KERNEL) | {"fp8bench": "te-fp8"}, "is no trace as fp8bench makes it"),
        (of(), "no kernel of a GPU was traced"),
        (of(device="cpu"), "no operator was traced"),
        (of({"ph": "X", "cat": "kernel"}), "is no trace as fp8bench makes it"),
        (of("event"), "is no trace as fp8bench makes it"),
        (of(KERNEL | {"ts": "soon"}), "is no trace as fp8bench makes it"),
    ],
)
def test_anything_else_is_refused_in_one_line(write, content, said):
    with pytest.raises(UsageError) as refused:
        read_trace(write(content))
    assert said in refused.value.what
    assert "\n" not in str(refused.value)
    assert "fp8bench run --mode" in refused.value.remedy


def test_a_kept_trace_reads_as_its_source_and_names_no_machine_zipped_or_under_a_plain_name(tmp_path, write):
    source, target = DATA / "trace-cpu.json.gz", tmp_path / "new" / "kept.json.gz"
    assert b"a-machine" in gzip.decompress(source.read_bytes())
    keep_trace(source, target)
    assert not [word for word in (b"a-machine", b"/home/") if word in gzip.decompress(target.read_bytes())]
    assert read_trace(target) == read_trace(source)
    keep_trace(source, tmp_path / "other.json.gz")
    assert (tmp_path / "other.json.gz").read_bytes() == target.read_bytes()
    document = of(KERNEL, {"ph": "M", "name": "process_labels", "args": {"labels": "GPU 0"}})
    keep_trace(write({"host_name": "a-machine", "traceName": "/home/x/t.json", **document}), tmp_path / "kept.json")
    assert json.loads((tmp_path / "kept.json").read_bytes()) == document
    assert read_trace(tmp_path / "kept.json").steps == 1
    with pytest.raises(RunFailed, match="cannot write"):
        keep_trace(REAL, tmp_path / "kept.json" / "kept.json")
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_trace(tmp_path / "none.json")


def event(cat, name, ts, dur, tid=1, **args):
    """An event; times in microseconds, as in a trace."""
    return {"cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def kernel(name, ts, dur, correlation, stream=7, cat="kernel"):
    return event(cat, name, ts, dur, correlation=correlation, stream=stream)


def launch(ts, correlation, cat="cuda_runtime", tid=1, name="cudaLaunchKernel"):
    return event(cat, name, ts, 1, tid, correlation=correlation)


def annotation(name, ts, dur):
    return event("user_annotation", name, ts, dur)


def operator(name, ts, dur, tid=1):
    return event("cpu_op", name, ts, dur, tid)


OPTIMIZER = "Optimizer.step#SGD.step"


def by_kind(*events):
    kinds = defaultdict(list)
    for one in events:
        kinds[one["cat"]].append(one)
    return kinds


def own_time(*events):
    """Microseconds of each operator's pieces together."""
    total = defaultdict(float)
    for span in cpu_spans(by_kind(*events)):
        total[span.name] += span.duration_s * 1e6
    return {name: pytest.approx(time) for name, time in total.items()}


# The kernels run long after the annotation has ended.
LAUNCHES = [launch(90, 1), launch(110, 2), launch(120, 3, cat="cuda_driver", tid=2), launch(160, 4)]


@pytest.mark.parametrize(
    ("name", "launches", "of_optimizer"),
    [
        (OPTIMIZER, LAUNCHES, [False, True, True, False]),
        ("DistributedDataParallel.forward", LAUNCHES, [False] * 4),
        (OPTIMIZER, [], [False] * 4),
    ],
    ids=["by its launch", "another annotation", "launch not traced"],
)
def test_a_kernel_is_the_optimizers_when_it_was_launched_in_its_annotation(name, launches, of_optimizer):
    kernels = (kernel(f"kernel {number}", 1000 + 10 * number, 5, number) for number in (1, 2, 3, 4))
    spans = gpu_spans(by_kind(annotation(name, 100, 50), *launches, *kernels))
    assert [span.in_optimizer for span in spans] == of_optimizer


def test_gpu_spans_begin_at_zero_and_are_in_order():
    first, second = gpu_spans(by_kind(kernel("late", 5_000_020, 5, 2, stream=17), kernel("early", 5_000_000, 10, 1)))
    assert (first.name, first.start_s, first.duration_s) == ("early", 0.0, pytest.approx(10e-6))
    assert (second.name, second.start_s) == ("late", pytest.approx(20e-6))


OWN_TIMES = {
    "nested": (
        [operator("outer", 0, 100), operator("inner", 20, 40), operator("innermost", 30, 10)],
        {"outer": 60, "inner": 30, "innermost": 10},
    ),
    "two threads": ([operator("one", 0, 100), operator("other", 20, 40, tid=2)], {"one": 100, "other": 40}),
    # Rounding may let the inner one end late.
    "late by rounding": ([operator("outer", 0, 100), operator("inner", 50, 50.5)], {"outer": 50, "inner": 50}),
    "gloo beside": ([operator("mm", 0, 100), annotation("gloo:reduce", 50, 100)], {"mm": 100, "gloo:reduce": 100}),
}


@pytest.mark.parametrize(("operators", "times"), OWN_TIMES.values(), ids=OWN_TIMES)
def test_an_operators_own_time_is_without_those_it_calls(operators, times):
    assert own_time(*operators) == times


def test_an_operator_in_pieces_is_counted_once_and_is_the_optimizers_by_its_own_time():
    spans = cpu_spans(by_kind(operator("outer", 0, 100), operator("a", 20, 10), operator("b", 50, 10)))
    names = [("outer", False), ("a", False), ("outer", True), ("b", False), ("outer", True)]
    assert [(span.name, span.continued) for span in spans] == names
    both = operator("aten::linear", 0, 100), operator("aten::addmm", 0, 90)
    assert sum(not span.continued for span in cpu_spans(by_kind(*both)) if span.name == "aten::linear") == 1
    assert own_time(*both) == {"aten::linear": 10, "aten::addmm": 90}
    spans = cpu_spans(by_kind(annotation(OPTIMIZER, 0, 50), operator("inside", 10, 5), operator("after", 60, 5)))
    assert [span.in_optimizer for span in spans] == [True, False]
