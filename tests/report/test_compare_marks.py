"""What is marked in a row: where it is from, GPUs that stood idle, what held it back, and what its rounds found."""

from datetime import date
from typing import Any

import pytest
from builders import (
    emulated,
    evidence,
    measured,
    measured_on_cpu,
    place,
    published,
    replayed,
    rounds,
    summary,
    unsupported,
)
from report.comparing import compared, row_of

from fp8bench.schema.record import Record, Steadiness


def marks_of(*records: Record) -> tuple[str, ...]:
    """The marks of the one row that these rounds become."""
    (row,) = compared(*records).rows
    return row.marks


def with_summaries(*changes: dict[str, Any]) -> list[Record]:
    """Rounds of one mode that differ in their summaries alone."""
    records = rounds(*[0.1] * len(changes))
    return [
        record.model_copy(update={"summary": record.summary.model_copy(update=change)})
        for record, change in zip(records, changes, strict=True)
        if record.summary
    ]


def unsteady(why: str | None) -> dict[str, Steadiness]:
    found = {"lag1_autocorrelation": 0.0, "effective_samples": 40.0, "outliers": (), "drift": 0.0}
    return {"steadiness": Steadiness(**found, unsteady=why)}


class TestWhereItIsFrom:
    @pytest.mark.parametrize(
        ("settings", "mark"),
        [
            ({"world_size": 4}, "share of p5: 4 of 8 GPUs"),
            ({"world_size": 8, "nodes": 2}, "share of p5: 8 of 16 GPUs"),
        ],
    )
    def test_fewer_gpus_than_the_instance_has_are_marked_as_its_share(self, settings, mark):
        assert mark in row_of(compared(record := measured("p5", settings=settings)), record).marks

    @pytest.mark.parametrize(("published_on", "mark"), [(date(2023, 11, 15), "published"), (None, "external")])
    def test_a_figure_from_elsewhere_is_marked_by_its_source(self, published_on, mark):
        assert row_of(compared(record := published("p5", published_on=published_on)), record).marks == (mark,)

    def test_a_figure_of_fewer_gpus_than_the_instance_has_is_marked_as_its_share(self):
        record = published("p5", published_on=None, world_size=4)

        assert "share of p5: 4 of 8 GPUs" in row_of(compared(record), record).marks

    def test_a_cpu_and_an_emulation_are_marked(self):
        slow, imitation = measured_on_cpu(), emulated(minutes=1)
        comparison = compared(slow, imitation)

        assert row_of(comparison, slow).marks[0] == "cpu"
        assert row_of(comparison, imitation).marks[:2] == ("cpu", "emulated")


class TestRounds:
    def test_all_gpus_in_use_and_three_rounds_alike_leave_no_mark(self):
        assert marks_of(*rounds(0.1, 0.1005, 0.0995)) == ()

    def test_a_single_process_is_marked(self):
        assert marks_of(*rounds(0.1)) == ("one process",)

    def test_processes_that_differ_are_marked_with_their_spread(self):
        (mark,) = marks_of(*rounds(0.1, 0.126, 0.11))

        assert mark.startswith("its processes differ by 1")
        assert mark.endswith(" % (standard deviation): measure more --rounds")

    def test_rounds_that_came_to_nothing_are_counted_with_the_reason_of_the_last(self):
        good = rounds(0.1, 0.1)
        broke = unsupported(
            "p5", "baseline-bf16", None, status="failed", reason="rank 1 died", session=place(3), minutes=9
        )

        assert marks_of(*good, broke) == ("1 of 3 rounds failed: rank 1 died",)


class TestWhatHoldsItBack:
    @pytest.mark.parametrize(
        ("found", "mark"),
        [
            ({"idle_share": 0.38}, "host-bound (idle 38 %)"),
            ({"idle_share": 0.1, "data_wait_share": 0.04}, "host-bound (idle 10 %)"),
            ({"idle_share": 0.25, "data_wait_share": 0.3}, "loader-bound (wait 30 %)"),
        ],
    )
    def test_a_row_whose_gpu_waited_is_marked_with_what_it_waited_for(self, found, mark):
        record = measured("p5", summary=summary(0.1, **found))

        assert row_of(compared(record), record).marks == ("one process", mark)

    @pytest.mark.parametrize("idle_share", [0.0, 0.099, None])
    def test_one_whose_gpu_was_busy_or_of_which_nothing_is_known_is_not(self, idle_share):
        record = measured("p5", summary=summary(0.1, idle_share=idle_share, host_lead_s=0.001))

        assert row_of(compared(record), record).marks == ("one process",)

    def test_what_differs_in_its_figures_alone_is_said_once_with_those_of_the_latest_round(self):
        shares = [{"idle_share": share} for share in (0.2, 0.3, 0.4)]

        assert marks_of(*with_summaries(*shares)) == ("host-bound (idle 40 %)",)

    def test_what_some_rounds_found_says_how_many(self):
        shares = [{"idle_share": share} for share in (0.03, 0.3, 0.04)]

        assert marks_of(*with_summaries(*shares)) == ("host-bound (idle 30 %), in 1 of 3 rounds",)

    def test_two_things_that_hold_rounds_back_are_two_marks(self):
        found = [{"idle_share": 0.3}, {"idle_share": 0.3, "data_wait_share": 0.5}]

        assert marks_of(*with_summaries(*found)) == (
            "host-bound (idle 30 %), in 1 of 2 rounds",
            "loader-bound (wait 50 %), in 1 of 2 rounds",
        )


class TestFlags:
    def test_flags_of_every_round_are_marked_once(self):
        flags = [{"flags": (f"power-capped {share} % of the time",)} for share in (97, 98, 100)]

        assert marks_of(*with_summaries(*flags)) == ("power-capped 100 % of the time",)

    def test_a_busy_gpu_in_one_round_is_marked_with_the_number_of_rounds(self):
        flags = [{"flags": ()}, {"flags": ("busy GPU: 1 other process, 2.0 GiB",)}, {"flags": ()}]

        assert marks_of(*with_summaries(*flags)) == ("busy GPU: 1 other process, 2.0 GiB, in 1 of 3 rounds",)

    def test_steps_that_were_timed_too_early_are_marked(self):
        found = [unsteady(None), unsteady("steps still fell by 3.1 % while they were timed")]

        assert marks_of(*with_summaries(*found)) == (
            "steps still fell by 3.1 % while they were timed, in 1 of 2 rounds",
        )

    def test_a_round_at_a_lower_clock_than_the_best_is_marked_by_its_number(self):
        clocks = [{"sm_clock_mhz": clock} for clock in (1755.0, 1620.0, 1750.0)]

        assert marks_of(*with_summaries(*clocks)) == ("round 2: clock 7.7 % below this mode's best round",)

    def test_warnings_of_the_runs_come_last_each_once(self):
        warned = evidence(warnings=("torch.compile was on but compiled nothing",))
        records = [
            record.model_copy(update={"evidence": warned})
            for record in with_summaries({"flags": ("telemetry missing",)}, {"flags": ("telemetry missing",)})
        ]

        assert marks_of(*records) == ("telemetry missing", "torch.compile was on but compiled nothing")


REFUSED = replayed(enabled=False, reason="an event was queried")


class TestHowItWasExecuted:
    @pytest.mark.parametrize(
        ("settings", "graph", "said"),
        [
            ({"cuda_graphs": "auto"}, REFUSED, ("not replayed: an event was queried",)),
            ({"cuda_graphs": "auto"}, replayed(), ()),
            ({"cuda_graphs": "off"}, replayed(enabled=False, reason="off"), ()),
            ({}, None, ()),
        ],
        ids=["refused", "replayed", "off", "an older record"],
    )
    def test_a_row_that_might_have_been_replayed_and_was_not_says_why(self, settings, graph, said):
        records = rounds(0.1, 0.1, settings=settings, evidence=evidence(graph=graph))

        assert marks_of(*records) == said

    def test_a_cpu_is_not_told_that_it_has_no_graphs(self):
        record = measured_on_cpu(evidence=evidence(graph=REFUSED), settings={"cuda_graphs": "auto"})

        assert not [mark for mark in marks_of(record) if "replayed" in mark]

    def test_a_warning_that_gives_the_same_reason_is_not_repeated(self):
        warnings = ("steps were not replayed as a CUDA graph: an event was queried", "another")
        found = evidence(graph=REFUSED, warnings=warnings)

        assert marks_of(*rounds(0.1, 0.1, settings={"cuda_graphs": "auto"}, evidence=found)) == (
            "not replayed: an event was queried",
            "another",
        )

    @pytest.mark.parametrize(
        ("asked", "marks"),
        [
            ({"compile": "auto", "cuda_graphs": "auto"}, []),
            ({"compile": "auto", "cuda_graphs": "on"}, ["with --cuda-graphs on"]),
            ({"compile": "blocks", "cuda_graphs": "auto"}, ["with --compile blocks"]),
            ({"compile": "on", "cuda_graphs": "on"}, []),
        ],
    )
    def test_a_run_that_stopped_before_its_variant_was_known_says_what_was_asked_for(self, asked, marks):
        row = row_of(compared(record := unsupported("p5", settings=asked)), record)

        assert [mark for mark in row.marks if mark.startswith("with --")] == marks
        assert row.execution == ("compiled+graphed" if asked["compile"] == "on" else None)
        assert row.compile is (True if asked["compile"] == "on" else None)


class TestHowRanksAreJoined:
    @staticmethod
    def of(join: str, mode: str, minutes: int, **settings: Any) -> Record:
        return measured(mode=mode, minutes=minutes, evidence=evidence(join=join), settings=settings)

    @pytest.mark.parametrize(
        ("join", "settings", "mark"),
        [
            ("ddp", {}, None),
            ("none", {"world_size": 1}, None),
            ("fsdp", {}, "ranks joined by fsdp, reference ddp"),
            (
                "ddp",
                {"activation_checkpointing": "full"},
                "ranks joined by ddp, full activation checkpointing, reference",
            ),
        ],
    )
    def test_another_way_than_the_references_is_marked(self, join, settings, mark):
        reference, other = self.of("ddp", "baseline-bf16", 0), self.of(join, "te-bf16", 1, **settings)
        marks = row_of(compared(reference, other), other).marks
        found = [one for one in marks if one.startswith("ranks joined by")]
        assert len(found) == (mark is not None)
        assert all(one.startswith(str(mark)) for one in found)
