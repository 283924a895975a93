"""Of variables that move numbers a reader sees settings, and no value that may be a secret; no text keeps one, and no
address: what is one, what is shown of it, and its folder here.
"""

from pathlib import Path

import pytest

from fp8bench.schema.address import Address, address_of, is_address, local, parse
from fp8bench.schema.errors import UsageError
from fp8bench.schema.private import A_PATH, LONGEST, SET, secrets_of, settings_in, shortened, shown_variable, without


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("NCCL_ALGO", "Ring", "Ring"),
        ("NCCL_BUFFSIZE", "4M", "4M"),
        ("NVTE_SOMETHING_NEW", "true", "true"),
        ("NVTE_SOMETHING_NEW", "hunter2", SET),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:4", None),
        ("NCCL_TOPO_FILE", "/home/somebody/topology.xml", A_PATH),
        ("TORCHINDUCTOR_REDIS_URL", "redis://me:hunter2@cache:6379", SET),
        ("NCCL_ALGO", "redis://me:hunter2@cache:6379", SET),
        ("NCCL_API_TOKEN", "12345678", SET),
        ("NCCL_NET", "x" * 5000, SET),
        ("CUDA_VISIBLE_DEVICES", "0,1", "0,1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1a2b3c4d-1a2b-1a2b-1a2b-1a2b3c4d5e6f,1", "***,1"),
        ("NCCL_ALGO", "\udcff\x1b[31m", SET),
    ],
)
def test_a_value_is_told_where_it_is_a_setting(name, value, shown):
    assert shown_variable(name, value) == (value if shown is None else shown)


def test_settings_alone_are_named_and_secrets_known_by_their_variable_and_their_place_in_an_address():
    environ = {"HOME": "/root", "AWS_SECRET_ACCESS_KEY": "abcdefgh", "CUDA_HOME": "/opt", "NCCL_DEBUG": "WARN"}
    assert settings_in(environ) == {"NCCL_DEBUG": "WARN"}
    # A name that is not UTF-8 is written out.
    assert settings_in({"NCCL_\udcff": "1"}) == {"NCCL_\\udcff": "1"}
    environ = {
        "HF_TOKEN": "hf_abcdef",
        "DB_PASSWORD": "short",
        "CACHE": "redis://me:hunter22@cache:6379/0",
        "XDG_SESSION_TYPE": "wayland",
    }
    assert secrets_of(environ) == {"hf_abcdef", "me:hunter22", "hunter22"}


def test_no_text_keeps_one_and_a_long_text_keeps_its_beginning_and_its_end():
    for text, clean in (
        ("cannot reach redis://me:p/w@cache:6379", "cannot reach redis://***@cache:6379"),
        ("https://github.com/a/b?page=2&size=3", "https://github.com/a/b?page=2&size=3"),
        ("401 for https://hub/x?token=tok_zz&n=1, retry", "401 for https://hub/x?token=***&n=1, retry"),
        ("https://b/x?X-Amz-Signature=ab12", "https://b/x?X-Amz-Signature=***"),
        ("me@example.org said canary-1", "me@example.org said ***"),
    ):
        assert without(text, {"canary-1"}) == clean
    found = shortened("a" * 5_000_000 + "the end")
    assert len(found) < LONGEST
    assert found.startswith("aaa")
    assert found.endswith("the end")
    assert "characters ...]" in found
    assert shortened("short") == "short"


def test_a_folder_is_no_address_and_stays_as_it_is_and_an_address_has_a_mirror_of_a_lasting_name(monkeypatch):
    for text in ("results", "/data/results", "./s3:/x", "C:/results"):
        assert (is_address(text), local(text)) == (False, text)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    folder = Path(str(local("s3://bucket/x")))
    assert folder == Path("/data/fp8bench/remote/s3-bucket-x-41a09e7431")
    assert str(address_of(folder)) == "s3://bucket/x"
    assert address_of(Path("results")) is None


def test_what_is_shown_of_an_address_has_no_password():
    for url, shown in (
        ("s3://bucket/a/", "s3://bucket/a"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("sftp://ann:hunter2@host/data", "sftp://***@host/data"),
        ("ssh://ann:hunter2/@x@host/data", "ssh://***@host/data"),
    ):
        address = Address.of(url)
        assert str(address) == shown
        assert "hunter2" not in repr(address)


def test_an_address_that_cannot_be_used_is_refused_without_its_password():
    for url, said in (
        ("ftps://ann:hunter2@host/x", "unknown scheme ftps://"),
        ("s3://AKIA:hunter2@bucket/x", "credentials"),
        ("s3://", "names no bucket"),
        *((f"{scheme}://ann:hunter2@host/x", r"rsync -a .*s3:// or gs://") for scheme in ("ssh", "sftp")),
        *((url, "no folder's address") for url in ("s3://bucket/../x", "s3://b?hunter2")),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            parse(url)
        assert "hunter2" not in str(refused.value)
