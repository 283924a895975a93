"""Files of one's own instances: a refused one stops those alone who ask for its instance."""

import pytest
from builders import measured, measured_on_cpu
from cli.calling import keep, one_line

from fp8bench.machine.identity import this_machines_identity

OF_P5 = "key: p5\ngpu: H100-SXM5-80GB\ngpu_count: 8\n"
NAMED = "line 1: its key is 'p5', and its folder is 'renamed'"


@pytest.fixture
def renamed(tmp_path):
    """Records of two instances; the folder of one of them was renamed, and has its instance.yaml in it."""
    results_dir = tmp_path / "results"
    for instance in ("p4d", "p5"):
        keep(measured(instance), results_dir)
    (results_dir / "p5" / "instance.yaml").write_text(OF_P5)
    (results_dir / "p5").rename(results_dir / "renamed")


@pytest.mark.parametrize("words", [("compare", "p4d"), ("list", "instances")])
def test_other_instances_are_shown_and_the_file_is_named(words, renamed, fp8bench_in):
    done = fp8bench_in(*words)

    assert done.code == 0
    assert "p4d" in done.stdout
    assert done.stderr.splitlines() == [f"fp8bench: warning: not read: results/renamed/instance.yaml {NAMED}"]


@pytest.mark.parametrize("asked", [("p5",), ("p4d", "p5"), ("p5.48xlarge",), ("renamed",)])
def test_its_own_is_refused_by_file_and_line(asked, renamed, fp8bench_in):
    done = fp8bench_in("compare", *asked)

    assert done.code == 2
    assert one_line(done).startswith(f"fp8bench: results/renamed/instance.yaml {NAMED}. Give both")


def test_a_run_elsewhere_goes_on(renamed, fp8bench_in):
    assert fp8bench_in("run", "--dry-run", "--mode", "baseline-bf16").code == 0
    refused = fp8bench_in("run", "--dry-run", "--instance", "p5")
    assert (refused.code, NAMED in one_line(refused)) == (2, True)


def test_a_dry_run_costs_what_this_machine_alone_does(fp8bench_in, tmp_path):
    machine = this_machines_identity(None)
    if machine is None:
        pytest.skip("this machine cannot be told from others")
    keep(measured_on_cpu(), tmp_path / "results")
    (tmp_path / "results" / "cpu" / "instance.yaml").write_text(
        "key: cpu\ngpu: null\ngpu_count: 0\nprices:\n"
        f"- {{usd_per_hour: 3.5, purchase: on_demand, as_of: 2026-01-01, source: ours, machine: {machine.id}}}\n"
    )

    assert "3.50 USD an hour" in fp8bench_in("run", "--dry-run", "--mode", "baseline-bf16").stdout
