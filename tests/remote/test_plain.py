"""Without the extra: what an address needs is said, and a folder needs none of it."""

import sys

import pytest

from fp8bench.cli.remote import synced
from fp8bench.remote.mirror import Store
from fp8bench.schema.address import parse
from fp8bench.schema.errors import UsageError


@pytest.mark.parametrize(("url", "package"), [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("ssh://h/x", "sshfs")])
def test_a_missing_extra_is_named_with_its_installation(monkeypatch, url, package):
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(UsageError, match=rf"needs {package}.*pip install 'fp8bench\[remote\]'"):
        Store(parse(url), 20).files()


def test_a_folder_has_no_mirror(tmp_path):
    with synced(tmp_path, measuring=False) as mirror:
        assert mirror is None
    assert list(tmp_path.iterdir()) == []
