"""Names of folders and files that are odd: an answer, or one line that says what is wrong with them."""

import json
import os
import re
from pathlib import Path

import pytest
from builders import measured
from cli.calling import invoked

from fp8bench.config.request import resolve
from fp8bench.pricing import catalog
from fp8bench.records import instances, results
from fp8bench.remote.mirror import RemoteFile, belongs, names_in, send
from fp8bench.schema.errors import UsageError

ODD = ["a b", "ä", "-x", "a\nb", "\x1b[31m", "a;b", "$(id)", "%s", "a'b", "x" * 200, "\udcff", "..."]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_folder_of_results_may_be_called_anything(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results.write(measured("p5"), Path(name))
    done = invoked("compare", "p5", "--results-dir", f"./{name}", "--format", "json")
    again = invoked("results", "verify", "--results-dir", f"./{name}")

    assert [row["mode"] for row in json.loads(done.stdout) if row["source"] == "measured"] == ["baseline-bf16"]
    assert again.exit_code == 0
    assert "\x1b" not in again.stdout


def test_a_nul_and_five_thousand_characters_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="holds a NUL"):
        resolve({}, {}, {"results_dir": "a\0b"}, "c.yaml", "")
    with pytest.raises(OSError, match="File name too long"):
        invoked("compare", "p5", "--results-dir", "x" * 5000)
    with pytest.raises(UsageError, match="File name too long"):
        results.require_writable(Path("x" * 5000))


def test_a_pipe_in_the_place_of_what_is_known_of_an_instance_holds_up_nothing(tmp_path):
    (tmp_path / "p5").mkdir()
    os.mkfifo(tmp_path / "p5" / "instance.yaml")
    (tmp_path / "prices").mkdir()
    os.mkfifo(tmp_path / "prices" / "20260501.csv")
    found = catalog.load_beside(instances.files(tmp_path))

    assert {unread.what.rpartition(": ")[2] for unread in found.unread} == {"Not a regular file"}


class Elsewhere:
    """A store in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def files(self):
        return {name: RemoteFile(len(data), None) for name, data in self.kept.items()}

    def put(self, name, data, replace=False):
        self.kept[name] = data

    def same(self, name, there, data):
        return self.kept[name] == data


def test_what_a_link_leads_to_out_of_the_folder_is_sent_to_nobody(tmp_path):
    (tmp_path / "credentials").write_text("canary")
    folder = tmp_path / "results"
    (folder / "p5").mkdir(parents=True)
    (folder / "p5" / "r.json").write_text("{}")
    (folder / "p5" / "linked.json").symlink_to("r.json")
    (folder / "p5" / "x.json").symlink_to(tmp_path / "credentials")
    (folder / "p5" / "gone.json").symlink_to("nowhere")
    os.mkfifo(folder / "p5" / "pipe.json")
    store = Elsewhere()
    done = send(store, folder, names_in(folder), {})

    assert sorted(store.kept) == sorted(done.sent) == ["p5/linked.json", "p5/r.json"]
    assert sorted(done.refused) == ["p5/gone.json", "p5/pipe.json", "p5/x.json"]


@pytest.mark.parametrize(
    "name", ["../r.json", "/r.json", "a/../../r.json", ".hidden/r.json", "a/.r.json", "a\\..\\r.json", "r.sh", "r", ""]
)
def test_a_name_from_elsewhere_that_would_lie_elsewhere_here_is_not_fetched(name):
    assert not belongs(name)


HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = (ROOT / "docs" / "faults.md").read_text()
NAMED = set(re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", TABLE))


def test_every_test_that_it_names_exists():
    missing = [name for name in NAMED if not ((ROOT if "/" in name else HERE) / name).is_file()]

    assert len(NAMED) > 10
    assert missing == []
