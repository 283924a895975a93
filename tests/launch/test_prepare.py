"""What is settled before anything runs: whose machine this is, whose price, and a model that is looked at before its
first worker starts.
"""

import sys
from datetime import date

import pytest
from builders import config, machine_called

from fp8bench.config.request import RunRequest
from fp8bench.launch import place as placing
from fp8bench.launch import prepare as preparing
from fp8bench.launch.place import register
from fp8bench.launch.prepare import examined, prepare, require_modes
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.catalog import load_beside
from fp8bench.records import instances
from fp8bench.records.lock import held
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.model import Answer, Refusal

TODAY = date(2026, 6, 1)
H200 = Machine(gpus=("NVIDIA H200",), product_name=None, cpu_count=16)
P5 = Machine(gpus=("NVIDIA H100 80GB HBM3",) * 8, product_name="p5.48xlarge", cpu_count=192)


def silent(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def prepared_on(monkeypatch, tmp_path):
    """A run prepared on a machine that is called so."""

    def prepared(machine, label):
        identity = machine_called(label, basis="gpu-uuids")
        monkeypatch.setattr(preparing, "this_machine", lambda _environ: machine)
        monkeypatch.setattr(placing, "this_machines_identity", lambda name: identity.model_copy(update={"label": name}))
        return prepare(RunRequest(results_dir=tmp_path, name=label, mode=("baseline-bf16",)), {})

    return prepared


def prices(tmp_path, key):
    return load_beside(instances.files(tmp_path)).instances[key].prices


def test_the_machine_is_asked_once_and_bears_the_name_that_was_given(prepared_on):
    found = prepared_on(H200, "vendor-a")

    assert found.here is not None
    assert found.here.machine == machine_called("vendor-a")
    assert found.here.software["torch"] is not None


def test_a_price_of_an_instance_that_was_made_up_is_this_machines_alone(prepared_on, tmp_path):
    for label, price in (("vendor-a", 3.0), ("vendor-b", 4.0)):
        register(prepared_on(H200, label), price, TODAY, silent)

    found = {price.machine: price.usd_per_hour for price in prices(tmp_path, "custom-1x-nvidia-h200")}
    assert found == {machine_called("vendor-a").id: 3.0, machine_called("vendor-b").id: 4.0}


def test_a_price_of_a_clouds_instance_is_everybodys_who_rents_it(prepared_on, tmp_path):
    register(prepared_on(P5, "vendor-a"), 90.0, TODAY, silent)

    assert (prices(tmp_path, "p5")[0].usd_per_hour, prices(tmp_path, "p5")[0].machine) == (90.0, None)


def test_two_who_write_one_price_list_wait_for_each_other(prepared_on, tmp_path, monkeypatch):
    monkeypatch.setattr(instances, "WAIT_S", 0.1)
    prepared = prepared_on(H200, "vendor-a")
    path = tmp_path / "custom-1x-nvidia-h200" / ".instance.yaml.lock"
    with held(path, "it", "", silent), pytest.raises(UsageError, match=r"instance\.yaml is in use by process \d+"):
        register(prepared, 3.0, TODAY, silent)

    register(prepared, 3.0, TODAY, silent)
    assert [path.name for path in path.parent.iterdir()] == ["instance.yaml"]


OF_TIMM = config(workload="timm:convnext_tiny", device="cpu", world_size=1)
SIZED = config(workload="vit-micro,depth=1")
NO = Refusal(what="it has no linear layer", remedy="Use another")
WRONG = Refusal(what="unknown size", remedy="Name another", exit_code=2)


def saying(text, code=0):
    return (sys.executable, "-ISs", "-c", f"import sys; sys.stdin.read(); print({text!r}); sys.exit({code})")


def test_a_workload_whose_name_says_what_it_is_is_not_looked_at():
    assert examined([config(workload="vit-micro")], ("/no/such/program",)) is None


@pytest.mark.parametrize(
    ("modes", "named", "refused"),
    [((None, NO), True, True), ((None, NO), False, False), ((NO, NO), False, True), ((None, None), True, False)],
)
def test_a_named_mode_that_cannot_is_an_error_and_a_default_one_where_none_can(modes, named, refused):
    answer = Answer(modes=modes)
    if not refused:
        require_modes(answer, named)
        return
    with pytest.raises(ModeUnavailable, match=r"it has no linear layer\. Use another"):
        require_modes(answer, named)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code", "error", "why"),
    [
        ("", 3, RunFailed, "timm:convnext_tiny could not be looked at: exit code 3"),
        ("{", 0, RunFailed, "timm:convnext_tiny could not be looked at: its answer cannot be read"),
        (Answer(refusal=NO).model_dump_json(), 0, ModeUnavailable, "it has no linear layer"),
        (Answer(refusal=WRONG).model_dump_json(), 0, UsageError, "unknown size"),
    ],
)
def test_a_look_that_broke_is_no_answer_and_a_refusal_is_an_error_here_too(text, code, error, why):
    assert examined([SIZED], saying(Answer().model_dump_json())) == Answer(), "other sizes are looked at too"
    assert examined([OF_TIMM], saying(Answer(modes=(NO,)).model_dump_json())) == Answer(modes=(NO,))
    with pytest.raises(error, match=why):
        examined([OF_TIMM], saying(text, code))
