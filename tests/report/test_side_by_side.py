"""What records side by side are called, and how their machines differ."""

from datetime import timedelta

import pytest
from builders import at, environment, machine_called
from report.made_gemm import H200, gemm_record

from fp8bench.tables.side_by_side import Difference, device, differences, labels


def record(instance="p5", minutes=0.0, **changes):
    return gemm_record(instance=instance, created_utc=at(minutes), **changes)


def test_a_record_is_called_by_its_instance():
    assert labels([record(), record("p4d")]) == ("p5", "p4d")


def test_two_of_one_instance_are_told_apart_by_their_minute():
    assert labels([record(), record(minutes=7), record("p4d")]) == ("p5 2026-05-01 10:00", "p5 2026-05-01 10:07", "p4d")


def test_within_a_minute_by_their_second_and_within_a_second_by_their_id():
    soon = record(run_id="soon").model_copy(update={"created_utc": at(0) + timedelta(seconds=3)})
    assert labels([record(), soon]) == ("p5 2026-05-01 10:00:00", "p5 2026-05-01 10:00:03")
    assert labels([record(run_id="one"), record(run_id="two")]) == ("p5 one", "p5 two")


def test_only_what_differs_and_moves_numbers_is_a_difference():
    versions = {"torch": "2.11.0", "cuda": "13.0", "numpy": "2.5", "torchao": "0.18"}
    one = record(environment=environment(H200, versions=versions, python="3.11.1", driver="580.0"))
    other = record(environment=environment("NVIDIA H100", versions={**versions, "cuda": "12.8", "numpy": "1"}))
    assert differences([one, other]) == (
        Difference("", (H200, "NVIDIA H100")),
        Difference("cuda", ("13.0", "12.8")),
    )
    assert differences([one, one]) == ()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"versions": {"torch": "2.12.0"}}, Difference("torch", ("2.11.0", "2.12.0"))),
        ({"versions": {"torch": "2.11.0", "torchao": "0.18"}}, Difference("torchao", (None, "0.18"))),
        (
            {"versions": {"torch": "2.11.0", "transformer-engine": "2.20"}},
            Difference("transformer-engine", (None, "2.20")),
        ),
        ({"driver": "570.1"}, Difference("driver", ("580.0", "570.1"))),
    ],
)
def test_each_library_and_the_driver_counts(changes, found):
    assert differences([record(), record(environment=environment(H200, **changes))]) == (found,)


def test_without_a_gpu_the_cpu_is_the_device_and_nothing_is_guessed_of_an_unknown_machine():
    cpus = [record(environment=environment(None, cpu=name)) for name in ("an Epyc", "a Xeon")]
    assert differences(cpus) == (Difference("", ("an Epyc", "a Xeon")),)
    unknown = record(environment=None)
    assert differences([record(), unknown])[0] == Difference("", (H200, None))
    assert [device(record()), device(cpus[0]), device(unknown)] == [H200, "CPU", "CPU"]


def test_two_machines_of_one_instance_are_told_and_those_of_two_instances_are_expected():
    here, there = machine_called("vendor-a"), machine_called(None)
    two = differences([record(machine=here), record(minutes=7, machine=there), record(minutes=9)])
    assert two == (Difference("machine", (f"vendor-a ({here.id})", there.id, None)),)
    assert differences([record(machine=here), record("p4d", machine=there)]) == ()
