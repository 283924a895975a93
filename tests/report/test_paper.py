"""A figure as a file: alike for the same numbers, complete or not at all, and refused where it cannot be drawn."""

import errno
import os
import re

import pytest

from fp8bench.schema.errors import RunFailed, UsageError
from fp8bench.tables import chart

pytestmark = pytest.mark.slow


def draw(path):
    with chart.figure(1.0, path) as figure:
        figure.subplots().plot([1, 2], [3, 4])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["all.svg", "all.png"])
def test_the_same_numbers_give_the_same_bytes_without_their_day_or_what_drew_them(name, tmp_path):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        draw(tmp_path / folder / name)
    drawn = (tmp_path / "one" / name).read_bytes()
    assert drawn == (tmp_path / "other" / name).read_bytes()
    assert not re.search(rb"<dc:date>|Matplotlib v|Software", drawn)
    if name.endswith("png"):
        assert int.from_bytes(drawn[16:20]) == 1800


def test_where_it_cannot_be_drawn(tmp_path):
    with pytest.raises(UsageError, match=r"End it in .png, .svg or .pdf"):
        draw(tmp_path / "all.gif")
    with pytest.raises(RunFailed, match="cannot write"):
        draw(tmp_path / "none" / "all.svg")


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_plot_that_cannot_be_written_to_its_end_leaves_the_one_that_was_there(suffix, tmp_path, monkeypatch):
    path = tmp_path / f"all{suffix}"
    path.write_text("the older plot")

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match=r"cannot write .*: No space left on device"):
        draw(path)
    assert path.read_text() == "the older plot"
    assert list(tmp_path.iterdir()) == [path]


def test_a_plot_at_a_link_replaces_the_file_that_it_leads_to(tmp_path):
    (tmp_path / "there.svg").write_text("the older plot")
    (tmp_path / "link.svg").symlink_to(tmp_path / "there.svg")
    draw(tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink()
    assert "<svg" in (tmp_path / "there.svg").read_text()
