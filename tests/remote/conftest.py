"""A server of the S3 protocol on loopback, which is moto's."""

import gc
import signal
import sys
import uuid

import pytest
from cli.calling import Outcome

from fp8bench.cli.app import main
from fp8bench.launch.signals import SIGNALS

KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTING", "AWS_SECRET_ACCESS_KEY": "much-too-secret"}


@pytest.fixture(scope="session")
def s3_server():
    """The variables that lead to it."""
    pytest.importorskip("s3fs", reason="the extra `remote` is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed")
    running = server.ThreadedMotoServer(port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1", **KEYS}
    running.stop()


@pytest.fixture
def variables(s3_server, tmp_path, monkeypatch):
    """Of one host, also in this process: the server, and a folder for mirrors."""
    mine = {**s3_server, "XDG_DATA_HOME": str(tmp_path / "data"), "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in mine.items():
        monkeypatch.setenv(name, value)
    return mine


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """The program in this process, since a new one would read the libraries of the clouds anew, for seconds."""

    def called(*words, **changed):
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        with monkeypatch.context() as context:
            context.chdir(tmp_path)
            context.setattr(sys, "argv", ["fp8bench", *words])
            for name, value in changed.items():
                context.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        gc.enable()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        said = capsys.readouterr()
        return Outcome(ended.value.code, said.out, said.err)

    return called


@pytest.fixture
def s3(variables):
    import boto3

    return boto3.client("s3")


@pytest.fixture
def bucket(s3):
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=name)
    return name
