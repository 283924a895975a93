"""How much fp8 can give a step: hand-made times, whose bounds are known."""

import pytest
from builders import evidence, measured, place, replayed, summary
from report.made_gemm import cube

from fp8bench.kinds.gemm.measure import bound, bounds
from fp8bench.schema.gemm import Timing

ONE_GPU = {"world_size": 1, "batch_size": 64}
OF_STEP = ("vit-huge", 64)


def timing(precision, time_s, casts="none", **changes):
    return Timing(precision=precision, casts=casts, time_s=time_s, repetitions=20, **changes)


def product(*timings, calls=10, **changes):
    return cube(*timings, layers=("fc",), calls_per_step=calls, **changes)


def fc(**changes):
    """10 calls of 4 ms in bf16: 40 ms a step. In fp8 2 ms, with eager casts 3 ms."""
    return product(
        timing("bf16", 0.004),
        timing("fp8-rowwise", 0.0025),
        timing("fp8-tensorwise", 0.002),
        timing("fp8-tensorwise", 0.003, "eager"),
        timing("fp8-rowwise", 0.0035, "eager"),
        **changes,
    )


HEAD = product(timing("bf16", 0.001), calls=1, stays_bf16="the head stays bf16 in every mode")


def run(mode="baseline-bf16", recipe=None, step_time_s=0.1, number=1, session="20260501T100000Z-aaaaaa", **changes):
    values = {"settings": ONE_GPU, "summary": summary(step_time_s), "session": place(number, session)}
    if mode != "baseline-bf16":
        values["evidence"] = evidence(changes.get("compiled", False), fp8=True, recipe=recipe)
    return measured(mode=mode, recipe=recipe, **{**values, **changes})


def test_the_bound_takes_the_fastest_fp8_of_each_product_also_without_a_baseline():
    found = bound([fc(), HEAD], [run()])
    assert found.bf16_products_s == pytest.approx(0.04)
    assert found.other_products_s == pytest.approx(0.001)
    free, eager = found.at_most
    assert (free.casts, free.products_s, free.speedup) == ("none", pytest.approx(0.02), pytest.approx(0.1 / 0.08))
    assert (eager.casts, eager.products_s, eager.speedup) == ("eager", pytest.approx(0.03), pytest.approx(0.1 / 0.09))
    found = bound([fc(), HEAD])
    assert (found.step_time_s, found.baseline_run_id, found.modes) == (None, None, ())
    assert [gain.speedup for gain in found.at_most] == pytest.approx([2.0, 4 / 3])


def test_a_step_is_the_median_of_its_rounds_of_the_baseline_and_of_each_mode():
    rounds = [run(step_time_s=step, number=number) for number, step in enumerate((0.1, 0.3, 0.2), start=1)]
    found = bound([fc()], rounds)
    assert (found.step_time_s, found.rounds, found.compiled) == (0.2, 3, False)
    assert found.at_most[0].speedup == pytest.approx(0.2 / 0.18)
    fp8 = [run("te-fp8", "delayed", step, number) for number, step in enumerate((0.08, 0.07, 0.09), start=1)]
    (mode,) = bound([fc()], [run()], [fp8]).modes
    assert (mode.label, mode.rounds, mode.step_time_s, mode.speedup) == ("te-fp8:delayed", 3, 0.08, 1.25)


def test_products_without_a_right_time_or_longer_than_the_step_are_told_and_bound_nothing():
    wrong = Timing(precision="fp8-tensorwise", status="invalid", reason="the product is off by 1, more than 0.01")
    found = bound([fc(), product(timing("bf16", 0.004), wrong)], [run()])
    assert found.left_in_bf16 == 1
    assert found.at_most[0].products_s == pytest.approx(0.02 + 0.04)
    fp8 = timing("fp8-tensorwise", 0.002)
    assert bound([product(timing("bf16", 0.004), fp8.model_copy(update={"emulated": True}))]) is None
    assert bound([product(fp8)]) is None
    found = bound([fc()], [run(step_time_s=0.03)])
    assert found.at_most == ()
    assert found.reason == "the GEMMs alone take longer here than the whole step did"


def test_a_mode_that_its_host_holds_back_says_so():
    held = run("te-fp8", "delayed", summary=summary(0.2, idle_share=0.4))
    free = run("te-fp8", "current", summary=summary(0.08, idle_share=0.03))
    modes = bound([fc()], [run()], [[held], [free]]).modes
    assert [mode.held_back_by for mode in modes] == ["host-bound (idle 40 %)", None]


def test_the_latest_session_of_each_mode_is_taken():
    old = [run(step_time_s=0.5, number=n, session="20260401T100000Z-bbbbbb", minutes=n) for n in (1, 2)]
    new = [run(step_time_s=0.1, number=n, minutes=10 + n) for n in (1, 2)]
    fp8 = run("te-fp8", "delayed", 0.08, minutes=5)
    (found,) = bounds([fc()], [*old, fp8, *new], *OF_STEP)
    assert (found.baseline_run_id, found.rounds, found.step_time_s) == (new[-1].run_id, 2, 0.1)
    assert [(mode.label, mode.rounds) for mode in found.modes] == [("te-fp8:delayed", 1)]


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"world_size": 8}},
        {"settings": {**ONE_GPU, "batch_size": 32}},
        {"settings": {**ONE_GPU, "workload": "vit-huge-256"}},
        {"settings": {**ONE_GPU, "device": "cpu"}},
        {"status": "invalid", "reason": "the gradient at the input is 0", "summary": None},
    ],
)
def test_unlike_runs_are_left_out(changes):
    fp8 = run("te-fp8", "delayed", 0.08, **changes)
    assert bounds([fc()], [run(**changes)], *OF_STEP) == (bound([fc()]),)
    assert bounds([fc()], [run(), fp8], *OF_STEP) == (bound([fc()], [run()]),)


def test_modes_in_bf16_are_left_out_and_so_are_modes_without_a_baseline():
    records = [run(), run("te-bf16", evidence=evidence())]
    assert bounds([fc()], records, *OF_STEP) == (bound([fc()], records[:1]),)
    (found,) = bounds([fc()], [run("te-fp8", "delayed", 0.08)], *OF_STEP)
    assert (found.step_time_s, found.modes) == (None, ())
    assert bounds([HEAD], [], *OF_STEP) == ()


TE, TORCHAO = ("te-fp8", "delayed"), ("torchao-float8", "tensorwise")
TE_LABEL, TORCHAO_LABEL = map(":".join, (TE, TORCHAO))


def graphed(*arguments, compiled=False, fp8=False):
    return run(*arguments, evidence=evidence(compiled, fp8=fp8, graph=replayed()))


BESIDE = {
    "compiled": (
        [
            *(run(step_time_s=0.1), run(step_time_s=0.09, compiled=True)),
            *(run(*TE, 0.08), run(*TORCHAO, 0.3), run(*TORCHAO, 0.085, compiled=True)),
        ],
        [
            ("eager", 0.1, {TE_LABEL: ("eager", 0.1 / 0.08), TORCHAO_LABEL: ("eager", 0.1 / 0.3)}),
            ("compiled", 0.09, {TE_LABEL: ("eager", 0.09 / 0.08), TORCHAO_LABEL: ("compiled", 0.09 / 0.085)}),
        ],
    ),
    "replayed": (
        [
            *(run(step_time_s=0.1, compiled=True), graphed("baseline-bf16", None, 0.09, compiled=True)),
            *(run(*TE, 0.095), graphed(*TE, 0.06, fp8=True), run(*TORCHAO, 0.085, compiled=True)),
        ],
        [
            ("compiled", 0.1, {TE_LABEL: ("eager", 0.1 / 0.095), TORCHAO_LABEL: ("compiled", 0.1 / 0.085)}),
            ("compiled+graphed", 0.09, {TE_LABEL: ("graphed", 0.09 / 0.06), TORCHAO_LABEL: ("compiled", 0.09 / 0.085)}),
        ],
    ),
}


@pytest.mark.parametrize(("records", "found"), BESIDE.values(), ids=BESIDE)
def test_compiled_and_replayed_modes_stand_beside_baselines_that_are_executed_so_only(records, found):
    """A replayed mode beside a baseline that Python launched would have the replay's gain counted as fp8's."""
    assert found == [
        (one.execution, one.step_time_s, {mode.label: (mode.execution, mode.speedup) for mode in one.modes})
        for one in bounds([fc()], records, *OF_STEP)
    ]
