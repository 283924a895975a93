"""Results on a host that is reached by the secure shell, on a real server; and what is said without the extra."""

import getpass
import sys

import pytest

from fp8bench.cli.remote import synced
from fp8bench.remote.mirror import Mirror, Refused, Store
from fp8bench.schema.address import parse
from fp8bench.schema.errors import UsageError


@pytest.fixture
def address(sshd, tmp_path, monkeypatch):
    port, home = sshd
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return parse(f"ssh://{getpass.getuser()}@127.0.0.1:{port}{tmp_path}/far")


def test_a_record_is_sent_fetched_by_another_host_and_never_overwritten(address, tmp_path, monkeypatch):
    first = Mirror(address)
    assert first.pull() == 0
    record = first.folder / "p5" / "one.json"
    record.parent.mkdir()
    record.write_text("{}\n")
    assert first.push().sent == ["p5/one.json"]
    far = tmp_path / "far" / "p5"
    assert [path.name for path in far.iterdir()] == ["one.json"]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "second"))
    second = Mirror(address)
    assert (second.pull(), (second.folder / "p5" / "one.json").read_text()) == (1, "{}\n")
    assert (first.pull(), second.pull()) == (0, 0)
    (second.folder / "p5" / "one.json").write_text("{} \n")
    assert second.push(["p5/one.json"]).refused == ["p5/one.json"]
    assert [(path.name, path.read_text()) for path in far.iterdir()] == [("one.json", "{}\n")]
    (far / "one.json").unlink()
    assert (first.pull(), record.exists()) == (0, False)
    own = first.folder / "p5" / "instance.yaml"
    for text in ("key: p5\n", "key: p5\ngpu: H100\n"):
        own.write_text(text)
        assert (first.push().sent, second.pull()) == (["p5/instance.yaml"], 1)
        assert [(path.name, path.read_text()) for path in far.iterdir()] == [("instance.yaml", text)]


@pytest.mark.parametrize(
    ("kept", "login", "said"),
    [
        ("id_ed25519", getpass.getuser(), "host key is not in known_hosts"),
        ("known_hosts", "nobody:hunter2", r"ssh://\*\*\*@127\.0\.0\.1.*not allowed"),
    ],
)
def test_an_unknown_host_and_a_wrong_password_are_refused_without_secrets(
    address, sshd, tmp_path, monkeypatch, kept, login, said
):
    port, home = sshd
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / kept).write_bytes((home / ".ssh" / kept).read_bytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(Refused, match=said) as refused:
        Mirror(parse(f"ssh://{login}@127.0.0.1:{port}/far")).pull()
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("url", "package"), [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("ssh://h/x", "sshfs")])
def test_a_missing_extra_is_named_with_its_installation_and_a_folder_needs_none(monkeypatch, url, package, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"needs {package}.*pip install 'fp8bench\[remote\]'"):
        Store(parse(url), 20).files()
    with synced(tmp_path, measuring=False) as mirror:
        assert mirror is None
