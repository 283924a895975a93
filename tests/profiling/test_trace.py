"""Reading a trace strictly, and keeping one without what names the machine."""

import gzip
import json

import pytest
from steps_of_vit_huge import DATA

from fp8bench.profiling.kernels import breakdown
from fp8bench.profiling.trace import TraceMetadata, keep_trace, looks_like_a_trace, read_trace, strip
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


def test_a_real_trace_of_a_gpu():
    trace = read_trace(REAL)
    assert (trace.metadata.mode, trace.metadata.steps, trace.metadata.device) == ("te-fp8:delayed", 1, "cuda")
    assert trace.metadata.step_time_s == pytest.approx(0.1411, abs=1e-4)
    assert len(trace.spans) == 3297
    assert sum(span.duration_s for span in trace.spans if span.in_optimizer) == pytest.approx(5.25e-3, abs=2e-5)
    assert all("multi_tensor_apply" in span.name or "Mem" in span.name for span in trace.spans if span.in_optimizer)


@pytest.fixture
def as_a_replay(write):
    """The real trace as it would be of one CUDA graph: one launch on the host, no annotation, the same kernels."""
    document = json.loads(gzip.decompress(REAL.read_bytes()))
    on_gpu = [e for e in document["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [{**event, "args": {**event["args"], "correlation": 1}} for event in on_gpu]
    launch = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaGraphLaunch",
        "ts": 0,
        "dur": 9,
        "args": {"correlation": 1},
    }
    return write({**document, "traceEvents": [launch, *kernels]})


def test_a_replay_has_every_kernel_though_the_host_launched_one_thing(as_a_replay):
    launched, replay = read_trace(REAL), read_trace(as_a_replay)
    assert (launched.replayed, replay.replayed) == (False, True)
    assert len(replay.spans) == len(launched.spans)
    assert breakdown(replay).busy_s == breakdown(launched).busy_s
    assert {k.name: k.calls_per_step for k in breakdown(replay).kernels} == {
        k.name: k.calls_per_step for k in breakdown(launched).kernels
    }


def test_the_optimizer_of_a_replay_is_told_by_its_kernels_names(as_a_replay):
    """But for what it copies and fills, which has no name of its own."""
    launched, replay = (breakdown(read_trace(path)).by_category["optimizer"] for path in (REAL, as_a_replay))
    assert replay == pytest.approx(launched, rel=0.05)


def test_a_real_trace_of_a_cpu():
    trace = read_trace(DATA / "trace-cpu.json.gz")
    assert (trace.metadata.device, trace.metadata.steps) == ("cpu", 2)
    assert {"aten::mm", "gloo:all_reduce"} <= {span.name for span in trace.spans}
    assert {span.name for span in trace.spans if span.in_optimizer} >= {"aten::add_", "aten::mul_"}


def test_zipped_or_not_is_told_by_the_content(write):
    assert read_trace(write(gzip.decompress(REAL.read_bytes()))) == read_trace(REAL)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (REAL.read_bytes()[:5000], "is not a whole gzip file"),
        ([], "is not a Chrome trace"),
        ({"fp8bench": FACTS}, "is not a Chrome trace"),
        ({"traceEvents": [KERNEL]}, "without the key 'fp8bench'"),
        ({"fp8bench": FACTS | {"steps": 0}, "traceEvents": [KERNEL]}, "field fp8bench.steps"),
        ({"fp8bench": FACTS | {"device": "tpu"}, "traceEvents": [KERNEL]}, "field fp8bench.device"),
        ({"fp8bench": FACTS | {"host": "h"}, "traceEvents": [KERNEL]}, "field fp8bench.host"),
        ({"fp8bench": "te-fp8", "traceEvents": [KERNEL]}, "field fp8bench"),
        ({"fp8bench": FACTS, "traceEvents": []}, "has no kernel of a GPU"),
        ({"fp8bench": FACTS | {"device": "cpu"}, "traceEvents": [KERNEL]}, "has no operator"),
        ({"fp8bench": FACTS, "traceEvents": [{"ph": "X", "cat": "kernel"}]}, "not as torch.profiler writes it"),
        ({"fp8bench": FACTS, "traceEvents": ["event"]}, "not as torch.profiler writes it"),
        ({"fp8bench": FACTS, "traceEvents": [KERNEL | {"ts": "soon"}]}, "not as torch.profiler writes it"),
    ],
)
def test_anything_else_is_refused_in_one_line(write, content, said):
    with pytest.raises(UsageError) as refused:
        read_trace(write(content))
    assert said in refused.value.what
    assert "\n" not in str(refused.value)
    assert "fp8bench explain --mode" in refused.value.remedy


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        read_trace(tmp_path / "none.json")


def test_the_step_may_be_untimed(write):
    trace = read_trace(write({"fp8bench": FACTS | {"step_time_s": None}, "traceEvents": [KERNEL]}))
    assert trace.metadata.step_time_s is None


def test_stripping_leaves_no_name_of_the_machine():
    label = {"ph": "M", "name": "process_labels", "args": {"labels": "GPU 0"}}
    document = {
        "host_name": "a-machine",
        "traceName": "/home/someone/t.json",
        "fp8bench": FACTS,
        "traceEvents": [label],
    }
    assert strip(document) == {"fp8bench": FACTS, "traceEvents": [label]}


def test_a_kept_trace_reads_as_its_source_and_names_no_machine(tmp_path):
    source, target = DATA / "trace-cpu.json.gz", tmp_path / "new" / "kept.json.gz"
    assert b"a-machine" in gzip.decompress(source.read_bytes())
    keep_trace(source, target)
    kept = gzip.decompress(target.read_bytes())
    assert b"a-machine" not in kept
    assert b"/home/" not in kept
    assert read_trace(target) == read_trace(source)


def test_the_same_trace_is_kept_as_the_same_bytes(tmp_path):
    for name in ("one.json.gz", "other.json.gz"):
        keep_trace(REAL, tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "other.json.gz").read_bytes()


def test_a_trace_is_kept_unzipped_under_a_plain_name_with_its_metadata(tmp_path, write):
    keep_trace(write({"fp8bench": FACTS, "traceEvents": [KERNEL]}), tmp_path / "kept.json")
    assert json.loads((tmp_path / "kept.json").read_bytes())["fp8bench"] == FACTS
    assert read_trace(tmp_path / "kept.json").metadata == TraceMetadata.model_validate(FACTS)


def test_a_trace_that_cannot_be_kept(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFailed, match="cannot write"):
        keep_trace(REAL, tmp_path / "file" / "kept.json")


def test_what_looks_like_a_trace(write, tmp_path):
    assert looks_like_a_trace(REAL)
    assert looks_like_a_trace(write({"traceEvents": []}))
    assert not looks_like_a_trace(write({"schema_version": 2}))
    assert not looks_like_a_trace(tmp_path / "none.json")
