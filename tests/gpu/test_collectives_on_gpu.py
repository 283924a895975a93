"""Collectives between two GPUs: every sum right, and as fast as links of their kind are known to be."""

import pytest
from gpu.this_gpu import needs_two_gpus

from fp8bench.kinds.collectives import KIND, CollectivesRecord, CollectivesRequest, collectives_report, measure, prepare
from fp8bench.pricing.catalog import load
from fp8bench.records import results

pytestmark = [pytest.mark.gpu, needs_two_gpus, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collectives")
    request = CollectivesRequest(gpus="2", sizes=("8K", "1M", "256M"), results_dir=folder, allow_busy=True)
    record = measure(prepare(request, {}), lambda _line: None)
    assert KIND.exit_code(record, request) == 0
    assert results.read_of_kind(results.write(record, folder), CollectivesRecord) == record
    return collectives_report(record, load())


def test_every_operation_is_right_and_timed_through_nccl(report):
    assert report.backend == "nccl"
    assert [row.status for row in report.rows] == ["ok"] * 18
    assert all(row.repetitions >= 60 and row.time_ci_s for row in report.rows)


def test_bandwidth_grows_with_the_size_and_stays_below_the_link(report):
    for operation in ("all-reduce", "all-gather", "reduce-scatter"):
        small, _, large = (row for row in report.rows if (row.operation, row.dtype) == (operation, "bf16"))
        assert large.bus_gb_s > 10 * small.bus_gb_s
        assert large.share_of_link is None or large.share_of_link < 1.05


def test_a_type_makes_no_difference_to_the_bytes_a_second(report):
    rows = {(row.operation, row.dtype): row for row in report.rows if row.size_bytes == 2**28}
    for operation in ("all-gather", "all-reduce"):
        assert rows[operation, "bf16"].bus_gb_s == pytest.approx(rows[operation, "fp32"].bus_gb_s, rel=0.2)
