"""Where a rank's temporary files are, so that none is left behind when it is killed."""

import tempfile
from pathlib import Path

from fp8bench.launch.processes import rank


def test_named_ones_lie_in_the_runs_folder_unless_another_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", tempfile.NamedTemporaryFile)
    (tmp_path / "run").mkdir()
    rank._keep_named_files_in(tmp_path / "run")

    with tempfile.NamedTemporaryFile() as inside, tempfile.NamedTemporaryFile(dir=tmp_path) as outside:
        assert Path(inside.name).parent == tmp_path / "run"
        assert Path(outside.name).parent == tmp_path
