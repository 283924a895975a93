"""What two records must share: machine and software, by what they say themselves."""

import pytest
from builders import environment, machine_called, measured, published
from pydantic import ValidationError

from fp8bench.records.select import not_comparable, unlike_software
from fp8bench.schema.machine import MachineIdentity, differing, same_machine, software_of

VERSIONS = {"torch": "2.11.0", "transformer-engine": "2.20.2", "cudnn": "91900", "numpy": "2.5.2"}
HERE, THERE = machine_called("vendor-a"), machine_called("vendor-b")


def test_a_software_is_what_decides_speed_and_nothing_else():
    variables = {"NCCL_ALGO": "Ring", "NCCL_DEBUG": "INFO", "NCCL_VERSION": "2.28", "CUDA_VISIBLE_DEVICES": "0"}
    variables |= {"TORCHINDUCTOR_CACHE_DIR": "(a path)", "OMP_NUM_THREADS": "1"}
    here = environment("NVIDIA H200", versions=VERSIONS, python="3.12.3", driver="580.1", variables=variables)
    found = software_of(here)

    assert found is not None
    assert {name: value for name, value in found.items() if value is not None} == {
        "torch": "2.11.0",
        "transformer-engine": "2.20.2",
        "cudnn": "91900",
        "driver": "580.1",
        "python": "3.12",
        "GPU": "NVIDIA H200",
        "fp8bench": "0.1.0",
        "NCCL_ALGO": "Ring",
        "OMP_NUM_THREADS": "1",
    }
    assert software_of(None) is None
    for gpu, cpu in ((None, "a CPU"), ("NVIDIA H200", None)):
        assert software_of(environment(gpu, cpu="a CPU"))["CPU"] == cpu, "named where no GPU computes"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"python": "3.12.9"}, []),
        ({"variables": {"NCCL_DEBUG": "INFO"}, "git_commit": "abc"}, []),
        ({"versions": VERSIONS | {"numpy": "1.0"}}, []),
        ({"versions": VERSIONS | {"torch": "2.12.0", "cudnn": None}}, ["torch", "cudnn"]),
        ({"python": "3.13.0", "driver": "590"}, ["driver", "python"]),
        ({"device_name": "NVIDIA H100"}, ["GPU"]),
        ({"versions": VERSIONS | {"transformers": "5.17.0"}}, ["transformers"]),
    ],
    ids=str,
)
def test_what_differs_between_two_is_named(change, names):
    usual = {"device_name": "NVIDIA H200", "versions": VERSIONS}
    one, other = environment(**usual), environment(**{**usual, **change})

    assert differing(software_of(one), software_of(other)) == names


def test_an_unknown_software_or_machine_is_like_an_unknown_one_and_no_other_whatever_it_was_called():
    known = software_of(environment())
    assert differing(None, None) == []
    assert differing(known, None) == differing(None, known) == ["software"]
    assert same_machine(HERE, HERE.model_copy(update={"label": None}))
    assert same_machine(None, None)
    assert not same_machine(HERE, THERE)
    assert not same_machine(HERE, None)


def test_records_of_one_instance_are_not_comparable_for_each_thing_that_differs():
    one = measured(machine=HERE, environment=environment(versions=VERSIONS))
    other = measured(machine=THERE, environment=environment(versions=VERSIONS | {"torch": "2.12.0"}))

    assert not_comparable(one, one) == []
    assert not_comparable(other, one) == [
        f"machine (vendor-b ({THERE.id}), reference vendor-a ({HERE.id}))",
        "torch (2.12.0, reference 2.11.0)",
    ]
    assert not_comparable(measured(machine=HERE), measured()) == [f"machine (vendor-a ({HERE.id}), reference unknown)"]


def test_between_two_instances_unlike_machines_are_expected_and_a_figure_has_none():
    one = measured("p4d", machine=HERE, environment=environment("NVIDIA A100", versions=VERSIONS))
    other = measured("p5", machine=THERE, environment=environment("NVIDIA H100", versions=VERSIONS | {"torch": "2.12"}))
    assert not_comparable(other, one) == []
    assert unlike_software(other, one) == ["torch (2.12, reference 2.11.0)"]
    assert unlike_software(one, one) == []
    assert unlike_software(measured("cpu", environment=environment(None)), one) == []
    assert not_comparable(published("p5"), measured("p5", machine=HERE)) == []
    assert unlike_software(published("p4d"), measured("p5")) == []


def test_an_identity_holds_a_digest_and_a_short_label():
    for wrong in ({"id": "box-7"}, {"id": "A" * 16}, {"label": "two words"}, {"label": "x" * 65}):
        with pytest.raises(ValidationError):
            MachineIdentity(**{"id": "0" * 16, "basis": "machine-id", **wrong})
