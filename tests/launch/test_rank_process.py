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


@pytest.mark.parametrize(
    ("logger", "text", "arguments", "shown"),
    [
        # Gathering in two operations computes nothing, and a reduction does.
        (*REDISTRIBUTING, ("(_StridedShard)", "(Replicate)", 2, "all_gather"), False),
        (*REDISTRIBUTING, ("(Partial)", "(Replicate)", 2, "all_reduce"), True),
        (*NO_CUDA, ("/usr/local",), False),
        *((name, "something is wrong with %s", ("all_gather",), True) for name in (REDISTRIBUTING[0], NO_CUDA[0])),
    ],
)
def test_known_warnings_are_hidden_and_any_other_of_the_same_logger_is_shown(logger, text, arguments, shown):
    hide_harmless()
    found = logging.getLogger(logger)
    try:
        assert bool(found.filter(logging.LogRecord(logger, logging.WARNING, "", 0, text, arguments, None))) == shown
    finally:
        for one in KNOWN:
            found.removeFilter(one)


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
