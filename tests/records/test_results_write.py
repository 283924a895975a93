"""Records are written whole or not at all, never over one another, and without a secret, a control character, a lone
surrogate or megabytes of text. On full and failing disks: tests/faults.
"""

import errno
import json
import os
import tempfile
from contextlib import suppress
from itertools import product

import pytest
from builders import evidence, invalid, measured, published
from report.made_gemm import gemm_record

from fp8bench.records import results
from fp8bench.records.files import is_record, samples_path
from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.schema.private import LONGEST_LOG, fit, fit_log


@pytest.fixture
def kept_in(tmp_path, monkeypatch):
    """The folder for temporary files, empty and one's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def refusing(code):
    def refuses(*_args, **_kwargs):
        raise OSError(code, os.strerror(code))

    return refuses


@pytest.fixture(params=[None, errno.EPERM, errno.ENOTSUP, errno.ENOSYS], ids=str)
def file_system(request, monkeypatch):
    """One with hard links, and those without."""
    if request.param:
        monkeypatch.setattr(os, "link", refusing(request.param))


def files_in(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


no_space = refusing(errno.ENOSPC)


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_the_umask_decides_who_may_read_a_record_its_log_and_what_is_kept_elsewhere(
    tmp_path, umask, mode, kept_in, monkeypatch
):
    before, record = os.umask(umask), measured()
    try:
        paths = [results.write(record, tmp_path / "r"), results.write_log(record, "what it said", tmp_path / "r")]
        monkeypatch.setattr(results, "write_atomically", no_space)
        with pytest.raises(RunFailed):
            results.write(record, tmp_path / "other")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (*paths, *files_in(kept_in))} == {mode}
    assert len(files_in(kept_in)) == 2


class TestWrite:
    def test_it_lies_in_its_instances_folder_and_a_published_figure_with_the_others(self, tmp_path):
        folder = tmp_path / "a" / "b"
        path = results.write(measured("mine", run_id="one"), folder)

        assert path == folder / "mine" / "one.json"
        assert sorted(path.parent.iterdir()) == [path, samples_path(path)]
        external = published("mine", published_on=None, run_id="two")
        assert results.write(external, folder) == folder / "mine" / "two.json"
        assert results.write(published(run_id="one"), folder) == folder / "published" / "one.json"

    @pytest.mark.parametrize("call", ["fsync", "link"])
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_the_record_comes_after_its_samples_and_neither_is_left_without_the_other(
        self, tmp_path, kept_in, monkeypatch, call, number
    ):
        """Whichever call is the first to fail: of the samples, of their folder, of the record."""
        real, calls = getattr(os, call), []

        def full_from_then_on(*args, **kwargs):
            calls.append(args)
            if len(calls) >= number:
                no_space()
            real(*args, **kwargs)

        with monkeypatch.context() as context:
            context.setattr(os, call, full_from_then_on)
            with suppress(RunFailed):
                results.write(measured(), tmp_path / "results")
        left = files_in(tmp_path / "results")
        kept = [results.read_record(path) for path in [*left, *files_in(kept_in)] if is_record(path.name)]
        assert (len(left) in (0, 2), kept) == (True, [measured()])

    @pytest.mark.usefixtures("file_system")
    def test_a_record_that_appears_meanwhile_is_not_overwritten(self, tmp_path, kept_in, monkeypatch):
        """Two processes of the same run id: the second must lose at the end, not only at a first look."""
        record = measured()
        path = tmp_path / "r" / record.instance / f"{record.run_id}.json"
        sync = os.fsync

        def other_process_wins(descriptor):
            sync(descriptor)
            path.write_text("the other's")

        monkeypatch.setattr(os, "fsync", other_process_wins)
        with pytest.raises(RunFailed, match="File exists") as caught:
            results.write(record, tmp_path / "r")

        assert str(path) in caught.value.what
        assert path.read_text() == "the other's"
        assert files_in(tmp_path / "r") == [path]
        (kept,) = (path for path in files_in(kept_in) if is_record(path.name))
        assert results.read_record(kept) == record

    @pytest.mark.parametrize("failing", [2, 1], ids=["the folder", "the record"])
    def test_a_record_in_place_is_not_reported_as_unwritten_and_ctrl_c_leaves_no_temporary_file(
        self, tmp_path, monkeypatch, failing
    ):
        sync, calls = os.fsync, []

        def sync_or_fail(descriptor):
            calls.append(descriptor)
            if len(calls) == failing:
                raise OSError(errno.EINVAL, "Invalid argument") if failing == 2 else KeyboardInterrupt
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", sync_or_fail)
        if failing == 2:
            assert results.write(measured(), tmp_path).is_file()
        else:
            with pytest.raises(KeyboardInterrupt):
                results.write(measured(), tmp_path)
            assert files_in(tmp_path) == []


def test_a_folder_of_results_is_made_and_left_empty_or_refused_before_the_run(tmp_path):
    results.require_writable(tmp_path / "a" / "results")
    assert list((tmp_path / "a" / "results").iterdir()) == []
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError, match=r"cannot write results to .*file/results.*--results-dir"):
        results.require_writable(tmp_path / "file" / "results")


ENVIRON = {"HF_TOKEN": "canary-one", "CACHE": "redis://me:canary-two@cache"}


def test_what_is_said_is_on_one_line_short_and_without_controls_surrogates_and_secrets():
    reason = "a\nb \x1b[31m \udcff canary-one redis://x:y@z " + "m" * 3_000_000
    said = fit(invalid().model_copy(update={"reason": reason}), ENVIRON).reason
    assert said.startswith("a b \\x1b[31m \\udcff *** redis://***@z ")
    assert len(said) < 5000
    details = {"cache canary-two": ["canary-one", {"deep": "\x1b]0;title\x07"}], "size": 4, "odd": None}
    found = fit(measured(evidence=evidence(details=details, warnings=("canary-one",))), ENVIRON).evidence
    assert found.details == {"cache ***": ["***", {"deep": "\\x1b]0;title\\x07"}], "size": 4, "odd": None}
    assert found.warnings == ("***",)


def test_numbers_and_what_a_record_is_of_are_never_touched_nor_is_a_record_that_is_fit():
    for fits in (measured(), invalid(), gemm_record()):
        assert fit(fits, ENVIRON) is fits
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
    assert fit_log("a\nb", ()) == "a\nb"
    assert len(fit_log("x" * 50_000_000, ())) <= LONGEST_LOG


def test_a_name_that_would_lie_elsewhere_is_refused(tmp_path):
    for field, name in product(("run_id", "instance"), ("../out", "a/b", ".hidden", "a\0b", "")):
        with pytest.raises(UsageError, match="cannot be kept under the name"):
            results.write(measured().model_copy(update={field: name}), tmp_path / "results")
    assert list(tmp_path.rglob("*.json")) == []
