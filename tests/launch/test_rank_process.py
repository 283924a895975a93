"""What a rank hides from users, and where it keeps its temporary files."""

import logging
import tempfile
from multiprocessing import process
from pathlib import Path

import pytest

from fp8bench.launch.processes import rank
from fp8bench.launch.processes.rank import KNOWN, hide_harmless

REDISTRIBUTING = (
    "torch.distributed.tensor._redistribute",
    "While redistributing from %s to %s, %d sequential %s operations will be performed. This is suboptimal",
)
NO_CUDA = ("torch.utils.cpp_extension", "No CUDA runtime is found, using CUDA_HOME='%s'")


class Heard(logging.Handler):
    """Keeps what is written."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def written():
    """Return what comes of a warning after the known ones are hidden."""
    names = {one.logger for one in KNOWN}
    heard = Heard()
    hide_harmless()
    for name in names:
        logging.getLogger(name).addHandler(heard)

    def warn(name, text, *arguments):
        logging.getLogger(name).warning(text, *arguments)
        return heard.lines

    yield warn
    for name in names:
        logging.getLogger(name).removeHandler(heard)
        for one in KNOWN:
            logging.getLogger(name).removeFilter(one)


def test_a_gathering_in_two_operations_is_hidden_and_a_reduction_is_not(written):
    assert written(*REDISTRIBUTING, "(_StridedShard)", "(Replicate)", 2, "all_gather") == []
    assert len(written(*REDISTRIBUTING, "(Partial)", "(Replicate)", 2, "all_reduce")) == 1


def test_a_cpu_without_cuda_is_hidden(written):
    assert written(*NO_CUDA, "/usr/local") == []


@pytest.mark.parametrize("logger", [REDISTRIBUTING[0], NO_CUDA[0]])
def test_any_other_warning_of_the_same_logger_is_shown(logger, written):
    assert written(logger, "something is wrong with %s", "all_gather") == ["something is wrong with all_gather"]


@pytest.mark.slow
def test_torch_still_words_them_so():
    """If this fails, torch has changed what is hidden."""
    from importlib.util import find_spec
    from pathlib import Path

    for one in KNOWN:
        # A parent package is imported on the way.
        assert one.begins in Path(find_spec(one.logger).origin).read_text()


def test_named_ones_lie_in_the_runs_folder_unless_another_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", tempfile.NamedTemporaryFile)
    (tmp_path / "run").mkdir()
    monkeypatch.setitem(vars(process.current_process())["_config"], "tempdir", None)
    rank.keep_files_in(tmp_path / "run")

    with tempfile.NamedTemporaryFile() as inside, tempfile.NamedTemporaryFile(dir=tmp_path) as outside:
        assert Path(inside.name).parent == tmp_path / "run"
        assert Path(outside.name).parent == tmp_path
