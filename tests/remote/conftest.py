"""Servers on loopback: one of the S3 protocol (moto's), and one of the secure shell (asyncssh's)."""

import asyncio
import gc
import signal
import sys
import threading
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


@pytest.fixture(scope="session")
def sshd(tmp_path_factory):
    """The port of a server that takes this user's key, and a home with this key and the server's."""
    pytest.importorskip("sshfs", reason="the extra `remote` is not installed")
    import asyncssh

    home = tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir(mode=0o700)
    host, key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    key.write_private_key(home / ".ssh" / "id_ed25519")
    key.write_public_key(home / "authorized")

    async def listen():
        keys = {"server_host_keys": [host], "authorized_client_keys": str(home / "authorized")}
        return await asyncssh.listen("127.0.0.1", 0, sftp_factory=True, **keys)

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = asyncio.run_coroutine_threadsafe(listen(), loop).result(10).get_port()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {host.export_public_key().decode()}")
    # Its thread ends with the tests'.
    return port, home
