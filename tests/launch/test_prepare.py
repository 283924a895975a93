"""What is settled before anything runs: what this machine is in the catalogue and what it cannot be called, whose it
is, whose price, and a model that is looked at before its first worker starts.
"""

import sys
from contextlib import nullcontext
from datetime import date

import pytest
from builders import config, machine_called

from fp8bench.config.request import RunRequest
from fp8bench.launch import place as placing
from fp8bench.launch import prepare as preparing
from fp8bench.launch.place import claim, identify, instance_called, register
from fp8bench.launch.prepare import examined, prepare, require_modes
from fp8bench.machine.gpus import Machine
from fp8bench.pricing.catalog import load, load_beside
from fp8bench.records import instances
from fp8bench.records.files import held
from fp8bench.schema.errors import ModeUnavailable, RunFailed, UsageError
from fp8bench.schema.instance import Catalog, Instance
from fp8bench.schema.model import Answer, Refusal

H100, H200, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L4"
SLICED = (f"{H100} (MIG)",)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    desk = Instance(key="desk", gpu=None, gpu_count=0)
    found = load()
    return found.model_copy(update={"instances": {**found.instances, "desk": desk}})


def shows(*gpus: str, product_name: str | None = None) -> Machine:
    return Machine(gpus=gpus, product_name=product_name, cpu_count=8)


@pytest.mark.parametrize(
    ("gpus", "product_name", "key", "gpu"),
    [
        ([H100] * 8, "p5.48xlarge", "p5", "H100-SXM5-80GB"),
        ([H200] * 2, "PowerEdge XE9680", "custom-2x-nvidia-h200", "H200-SXM-141GB"),
        (["NVIDIA GeForce RTX 3060 Laptop GPU"], None, "custom-1x-nvidia-geforce-rtx-3060-laptop-gpu", None),
        (["Orin (nvgpu)"], None, "custom-1x-orin-nvgpu", None),
        # A slice of a GPU is another GPU, without a price.
        (SLICED, "p5.48xlarge", "custom-1x-nvidia-h100-80gb-hbm3-mig", None),
        ([], "p5.48xlarge", "cpu", None),
    ],
)
def test_a_machine_is_known_by_its_product_name_else_by_its_gpus(gpus, product_name, key, gpu, catalog):
    found = identify(shows(*gpus, product_name=product_name), catalog)

    assert (found.key, found.gpu, found.gpu_count) == (key, gpu, len(gpus))
    assert (found == catalog.instances["p5"]) == (key == "p5")
    assert bool(found.prices) == (key == "p5")
    # One without a product name is no instance without a type.
    nameless = Catalog(instances={"own": Instance(key="own", gpu=None, gpu_count=1)}, gpus=catalog.gpus)
    assert identify(shows(L4), nameless).key == "custom-1x-nvidia-l4"


@pytest.mark.parametrize(
    ("key", "gpus", "error", "told"),
    [
        (
            "p5",
            [H200] * 8,
            UsageError,
            "instance 'p5' has 8 x H100-SXM5-80GB, and this machine shows 8 x H200-SXM-141GB",
        ),
        ("p5", [], ModeUnavailable, "this machine shows no GPU"),
        ("desk", [L4], UsageError, "instance 'desk' has no GPU, and this machine shows 1 x L4"),
        (
            "p5-4xlarge",
            [H100] * 8,
            UsageError,
            "instance 'p5-4xlarge' has 1 x H100-SXM5-80GB, and this machine shows 8 x H100",
        ),
        ("p5", SLICED, UsageError, r"'p5' has 8 x H100-SXM5-80GB, and this machine shows slices of one \(MIG\)"),
        # What it has, or may have.
        *(("p5", gpus, None, "") for gpus in ([H100] * 8, [H100] * 4, ["A GPU that nobody knows"] * 8)),
        ("desk", [], None, ""),
    ],
)
def test_a_machine_may_not_be_called_what_it_is_not(key, gpus, error, told, catalog):
    with nullcontext() if error is None else pytest.raises(error, match=told):
        assert claim(catalog.instances[key], shows(*gpus), catalog) is None


@pytest.mark.parametrize(
    ("name", "has_price", "told"),
    [
        ("p55", False, r"unknown instance 'p55'. Did you mean 'p5'\? .*give its --price to"),
        # A known name is still the catalogue's.
        ("p5", True, "'p5' has 8 x H100-SXM5-80GB, and this machine shows 1 x L4"),
        *((name, True, "cannot be the name of an instance") for name in ("My Box", "../up", "-box")),
    ],
)
def test_with_a_price_an_unknown_name_is_this_machines_and_one_that_it_cannot_have_is_refused(
    name, has_price, told, catalog
):
    own = instance_called("my-box", shows(L4, L4, product_name="X9"), catalog, has_price=True)
    assert own == Instance(key="my-box", gpu="L4", gpu_count=2)
    with pytest.raises(UsageError, match=told):
        instance_called(name, shows(L4), catalog, has_price=has_price)


TODAY = date(2026, 6, 1)


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
    found = prepared_on(shows(H200), "vendor-a")

    assert found.here is not None
    assert found.here.machine == machine_called("vendor-a")
    assert found.here.software["torch"] is not None


def test_a_price_of_an_instance_that_was_made_up_is_this_machines_alone_and_a_clouds_everybodys(prepared_on, tmp_path):
    for label, price in (("vendor-a", 3.0), ("vendor-b", 4.0)):
        register(prepared_on(shows(H200), label), price, TODAY, silent)

    found = {price.machine: price.usd_per_hour for price in prices(tmp_path, "custom-1x-nvidia-h200")}
    assert found == {machine_called("vendor-a").id: 3.0, machine_called("vendor-b").id: 4.0}
    register(prepared_on(shows(*[H100] * 8, product_name="p5.48xlarge"), "vendor-a"), 90.0, TODAY, silent)

    assert (prices(tmp_path, "p5")[0].usd_per_hour, prices(tmp_path, "p5")[0].machine) == (90.0, None)


def test_two_who_write_one_price_list_wait_for_each_other(prepared_on, tmp_path, monkeypatch):
    monkeypatch.setattr(instances, "WAIT_S", 0.1)
    prepared = prepared_on(shows(H200), "vendor-a")
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
    error = pytest.raises(ModeUnavailable, match=r"it has no linear layer\. Use another")
    with error if refused else nullcontext():
        require_modes(Answer(modes=modes), named)


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
