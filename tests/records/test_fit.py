"""What is written of a record: no secret, no control character, no lone surrogate, no megabytes of text."""

import json

import pytest
from builders import evidence, invalid, measured, published
from report.made_gemm import gemm_record

from fp8bench.records import results
from fp8bench.records.fit import LONGEST_LOG, fit, fit_log
from fp8bench.schema.errors import UsageError

ENVIRON = {"HF_TOKEN": "canary-one", "CACHE": "redis://me:canary-two@cache"}


@pytest.mark.parametrize("record", [measured(), invalid(), gemm_record()])
def test_a_record_that_is_fit_is_itself(record):
    assert fit(record, ENVIRON) is record


def test_what_is_said_is_on_one_line_short_and_without_controls_surrogates_and_secrets():
    reason = "a\nb \x1b[31m \udcff canary-one redis://x:y@z " + "m" * 3_000_000
    said = fit(invalid().model_copy(update={"reason": reason}), ENVIRON).reason
    assert said.startswith("a b \\x1b[31m \\udcff *** redis://***@z ")
    assert len(said) < 5000
    details = {"cache canary-two": ["canary-one", {"deep": "\x1b]0;title\x07"}], "size": 4, "odd": None}
    found = fit(measured(evidence=evidence(details=details, warnings=("canary-one",))), ENVIRON).evidence
    assert found.details == {"cache ***": ["***", {"deep": "\\x1b]0;title\\x07"}], "size": 4, "odd": None}
    assert found.warnings == ("***",)


def test_numbers_and_what_a_record_is_of_are_never_touched():
    record = measured()
    mode = record.what.mode
    found = fit(record, {"MY_TOKEN": mode})

    assert (found.config, found.run_id, found.samples) == (record.config, record.run_id, record.samples)
    # Nor is what a table knows a GPU by.
    assert fit(record, {"MY_TOKEN": "NVIDIA", "YOUR_TOKEN": record.environment.versions["torch"]}) is record


def test_what_is_written_is_what_is_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary-one")
    record = invalid().model_copy(update={"reason": "canary-one \udcff"})
    path = results.write(record, tmp_path)
    log = results.write_log(record, "first canary-one\n\x1b[31mred \udcff\n", tmp_path)
    assert json.loads(path.read_text())["reason"] == "*** \\udcff"
    assert log.read_text() == "first ***\n\\x1b[31mred \\udcff\n"
    figure = published("p4d")
    odd = figure.provenance.model_copy(update={"citation": "a\x1b[31m \udcff"})
    path = results.write(figure.model_copy(update={"provenance": odd}), tmp_path)
    assert json.loads(path.read_bytes())["provenance"]["citation"] == "a\\x1b[31m \\udcff"
    assert fit_log("a\nb", {}) == "a\nb"
    assert len(fit_log("x" * 50_000_000, {})) <= LONGEST_LOG


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "a\0b", ""])
def test_a_name_that_would_lie_elsewhere_is_refused(name, tmp_path):
    for field in ("run_id", "instance"):
        with pytest.raises(UsageError, match="cannot be kept under the name"):
            results.write(measured().model_copy(update={field: name}), tmp_path / "results")

    assert list(tmp_path.rglob("*.json")) == []
