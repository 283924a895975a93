"""Events made into spans: which kernels are the optimizer's, and which time is an operator's own."""

from collections import defaultdict

import pytest

from fp8bench.profiling.trace import cpu_spans, gpu_spans, replayed


def kernel(name, ts, dur, correlation, stream=7):
    """A kernel; times in microseconds, as in a trace."""
    args = {"correlation": correlation, "stream": stream}
    return {"cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": args}


def launch(ts, correlation, cat="cuda_runtime", tid=1):
    return {
        "cat": cat,
        "name": "cudaLaunchKernel",
        "ts": ts,
        "dur": 1,
        "tid": tid,
        "args": {"correlation": correlation},
    }


def annotation(name, ts, dur):
    return {"cat": "user_annotation", "name": name, "ts": ts, "dur": dur, "tid": 1}


def operator(name, ts, dur, tid=1):
    return {"cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "tid": tid}


def by_kind(*events):
    kinds = defaultdict(list)
    for event in events:
        kinds[event["cat"]].append(event)
    return kinds


def own_time(*events):
    """Microseconds of each operator's pieces together."""
    total = defaultdict(float)
    for span in cpu_spans(by_kind(*events)):
        total[span.name] += span.duration_s * 1e6
    return {name: pytest.approx(time) for name, time in total.items()}


def test_a_kernel_is_the_optimizers_when_it_was_launched_in_its_annotation():
    spans = gpu_spans(
        by_kind(
            annotation("Optimizer.step#SGD.step", 100, 50),
            launch(90, 1),
            launch(110, 2),
            launch(120, 3, cat="cuda_driver", tid=2),
            launch(160, 4),
            # All of them run long after the annotation has ended.
            *(kernel(f"kernel {number}", 1000 + 10 * number, 5, number) for number in (1, 2, 3, 4)),
        )
    )
    assert [span.in_optimizer for span in spans] == [False, True, True, False]


def test_other_annotations_are_not_the_optimizers():
    events = by_kind(annotation("DistributedDataParallel.forward", 0, 50), launch(10, 1), kernel("a", 20, 5, 1))
    assert not gpu_spans(events)[0].in_optimizer


def test_a_kernel_whose_launch_was_not_traced_is_nobodys():
    assert not gpu_spans(by_kind(annotation("Optimizer.step#SGD.step", 0, 50), kernel("a", 20, 5, 9)))[0].in_optimizer


def graph_launch(ts, correlation):
    return {**launch(ts, correlation), "name": "cudaGraphLaunch"}


def test_the_kernels_of_a_replay_share_the_correlation_of_its_launch():
    """Two replays, and the copy of a batch before each, which is launched by itself."""
    copy = {"cat": "gpu_memcpy"}
    events = by_kind(
        *(launch(ts, number) for ts, number in ((0, 1), (100, 3))),
        *(graph_launch(ts, number) for ts, number in ((10, 2), (110, 4))),
        *({**kernel("Memcpy HtoD", ts, 5, number), **copy} for ts, number in ((20, 1), (120, 3))),
        *(
            kernel(name, ts + at, 10, number)
            for ts, number in ((30, 2), (130, 4))
            for name, at in (("a", 0), ("b", 10))
        ),
    )
    assert [span.name for span in gpu_spans(events)] == ["Memcpy HtoD", "a", "b"] * 2
    assert replayed(events)


def test_a_graph_beside_many_launches_is_no_replayed_step():
    """As of an optimizer alone, or of what a library captured for itself."""
    launched = [event for number in (1, 2, 3) for event in (launch(number, number), kernel("k", 50, 5, number))]
    assert not replayed(by_kind(*launched, graph_launch(9, 9), kernel("in a graph", 60, 5, 9)))
    assert not replayed(by_kind(*launched))


def test_gpu_spans_begin_at_zero_and_are_in_order():
    first, second = gpu_spans(by_kind(kernel("late", 5_000_020, 5, 2, stream=17), kernel("early", 5_000_000, 10, 1)))
    assert (first.name, first.start_s, first.duration_s) == ("early", 0.0, pytest.approx(10e-6))
    assert (second.name, second.start_s) == ("late", pytest.approx(20e-6))


def test_an_operators_own_time_is_without_those_it_calls():
    outer, inner, innermost = operator("outer", 0, 100), operator("inner", 20, 40), operator("innermost", 30, 10)
    assert own_time(outer, inner, innermost) == {"outer": 60, "inner": 30, "innermost": 10}


def test_an_operator_in_pieces_is_counted_once():
    spans = cpu_spans(by_kind(operator("outer", 0, 100), operator("a", 20, 10), operator("b", 50, 10)))
    assert [(span.name, span.continued) for span in spans] == [
        ("outer", False),
        ("a", False),
        ("outer", True),
        ("b", False),
        ("outer", True),
    ]


def test_an_operator_that_starts_with_another_is_counted_too():
    spans = cpu_spans(by_kind(operator("aten::linear", 0, 100), operator("aten::addmm", 0, 90)))
    assert sum(not span.continued for span in spans if span.name == "aten::linear") == 1
    assert own_time(operator("aten::linear", 0, 100), operator("aten::addmm", 0, 90)) == {
        "aten::linear": 10,
        "aten::addmm": 90,
    }


def test_threads_do_not_nest():
    assert own_time(operator("one", 0, 100), operator("other", 20, 40, tid=2)) == {"one": 100, "other": 40}


def test_an_inner_operator_that_ends_late_by_rounding_takes_no_time_twice():
    assert own_time(operator("outer", 0, 100), operator("inner", 50, 50.5)) == {"outer": 50, "inner": 50}


def test_gloos_annotation_stands_beside_the_operators():
    spans = cpu_spans(by_kind(operator("aten::mm", 0, 100), annotation("gloo:all_reduce", 50, 100)))
    assert [(span.name, round(span.duration_s * 1e6)) for span in spans] == [
        ("aten::mm", 100),
        ("gloo:all_reduce", 100),
    ]


def test_an_operator_is_the_optimizers_by_its_own_time():
    spans = cpu_spans(
        by_kind(annotation("Optimizer.step#SGD.step", 0, 50), operator("inside", 10, 5), operator("after", 60, 5))
    )
    assert [span.in_optimizer for span in spans] == [True, False]
