"""Addresses: what is one, what is shown of it, and its folder here."""

from pathlib import Path

import pytest

from fp8bench.schema.address import address_of, is_address, local, parse
from fp8bench.schema.errors import UsageError


def test_a_folder_is_no_address_and_stays_as_it_is_and_a_mirror_is_one_for_an_address_whatever_the_password(
    monkeypatch,
):
    for text in ("results", "/data/results", "./s3:/x", "C:/results"):
        assert (is_address(text), local(text)) == (False, text)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    folder = Path(str(local("ssh://ann:one@host/x")))
    assert folder.parent == Path("/data/fp8bench/remote")
    assert folder == parse("ssh://ann:two@host/x").mirror
    assert folder != parse("ssh://bob@host/x").mirror
    assert str(address_of(folder)) == "ssh://***@host/x"
    assert address_of(Path("results")) is None


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a/", "s3://bucket/a"),
        ("ssh://ann@host:22/data", "ssh://ann@host:22/data"),
        ("sftp://ann:hunter2@host/data", "sftp://***@host/data"),
        ("ssh://ann:hunter2/@x@host/data", "ssh://***@host/data"),
    ],
)
def test_what_is_shown_of_an_address_has_no_password(url, shown):
    address = parse(url)

    assert str(address) == shown
    assert "hunter2" not in f"{address!r} {address.mirror}"
    address = parse("ssh://ann:hunter%32@host/data")
    assert address.password == "hunter2"
    assert address.clean("hunter%32 and\nhunter2 are wrong") == "*** and *** are wrong"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftps://ann:hunter2@host/x", "unknown scheme ftps://"),
        ("s3://AKIA:hunter2@bucket/x", "credentials"),
        *(("s3://", "names no bucket"), ("ssh:///x", "names no host")),
        *((url, "no folder's address") for url in ("s3://bucket/../x", "s3://b?hunter2")),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url, said):
    with pytest.raises(UsageError, match=said) as refused:
        parse(url)
    assert "hunter2" not in str(refused.value)
