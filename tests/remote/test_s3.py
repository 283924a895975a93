"""Results in a bucket, on a real server of the S3 protocol on loopback, which is moto's."""

import gc
import json
import signal
import socket
import sys
import uuid

import pytest
from builders import measured
from cli.calling import Outcome, one_line

from fp8bench.cli.app import main
from fp8bench.cli.remote import synced
from fp8bench.launch.signals import SIGNALS
from fp8bench.records import results
from fp8bench.records.files import samples_path
from fp8bench.remote.mirror import Mirror, Store, Unreachable
from fp8bench.schema.address import parse
from fp8bench.schema.errors import UsageError

pytestmark = pytest.mark.thorough

SECRET = "much-too-secret"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTING", "AWS_SECRET_ACCESS_KEY": SECRET}


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


def keep(folder, **changes):
    record = measured(**changes)
    return results.write(record, folder), record


def names(s3, bucket):
    return {one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", [])}


def mirror_of(bucket, limit_s=20):
    return Mirror(parse(f"s3://{bucket}/results"), limit_s)


@pytest.fixture
def hosts(bucket, tmp_path, monkeypatch):
    """The mirrors of two hosts."""
    first = mirror_of(bucket)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "second"))
    return first, mirror_of(bucket)


def test_what_one_host_pushes_another_compares_and_verifies(variables, bucket, s3, tmp_path, call):
    path, record = keep(tmp_path / "results", instance="my-box")
    url = f"s3://{bucket}/results"
    pushed = call("results", "push", url)
    again = call("results", "push", url, "--format", "json")
    other = str(tmp_path / "other")
    compared = call("compare", "my-box", "--results-dir", url, "--format", "json", XDG_DATA_HOME=other)
    verified = call("results", "verify", FP8BENCH_RESULTS_DIR=url, XDG_DATA_HOME=other)
    assert (pushed.code, pushed.stderr) == (0, "")
    assert names(s3, bucket) == {f"results/my-box/{one.name}" for one in (path, samples_path(path))}
    assert json.loads(again.stdout)["same"] == [f"my-box/{one.name}" for one in (samples_path(path), path)]
    assert [row["run_id"] for row in json.loads(compared.stdout)] == [record.run_id]
    assert (verified.code, "1 file read, 0 bad" in verified.stdout) == (0, True)
    assert SECRET not in str((pushed, compared, verified))


def test_samples_come_before_their_records_both_ways_and_only_what_is_new(hosts, monkeypatch):
    first, second = hosts
    paths = [keep(first.folder, instance="p5", run_id=run_id)[0] for run_id in ("a", "b")]
    expected = [f"p5/{one.name}" for one in (*map(samples_path, paths), *paths)]
    monkeypatch.setattr("fp8bench.remote.mirror.BATCH", 1)
    fetched, read = [], second.store.read
    monkeypatch.setattr(second.store, "read", lambda names: [fetched.extend(names), read(names)][1])
    assert (first.push().sent, first.push().sent) == (expected, [])
    assert (second.pull(), second.pull(), second.pending(), fetched) == (4, 0, [], expected)


def test_an_object_that_was_edited_in_place_is_refused_and_named(bucket, s3):
    mirror = mirror_of(bucket)
    path, _ = keep(mirror.folder, instance="p5")
    mirror.push()
    kept = path.read_bytes()
    s3.put_object(Bucket=bucket, Key=f"results/p5/{path.name}", Body=kept + b"\n")
    assert (mirror.pull(), mirror.pending()) == (0, [f"p5/{path.name}"])
    assert (mirror.push().refused, path.read_bytes()) == ([f"p5/{path.name}"], kept)


@pytest.mark.parametrize("state", ["", "[]", '{"p5/a.json": ["7", ""]}'])
def test_a_state_that_is_lost_or_of_an_older_fp8bench_is_compared_anew(bucket, state):
    mirror = mirror_of(bucket)
    keep(mirror.folder, instance="p5")
    mirror.push()
    (mirror.folder / ".remote.json").write_text(state)
    assert (mirror.pull(), len(mirror.pending())) == (0, 2)
    assert (len(mirror.push().same), mirror.pending(), mirror.pull()) == (2, [], 0)


def test_two_hosts_with_one_name_the_second_is_refused_and_nothing_is_overwritten(hosts, bucket, s3):
    first, second = hosts
    path, record = keep(first.folder, instance="p5")
    changed, _ = keep(second.folder, instance="p5", run_id=record.run_id, reason="of the second host")
    assert first.push().sent == [f"p5/{one.name}" for one in (samples_path(path), path)]
    assert second.push().refused == [f"p5/{changed.name}"]
    kept = s3.get_object(Bucket=bucket, Key=f"results/p5/{path.name}")["Body"].read()
    assert kept == path.read_bytes() != changed.read_bytes()


def test_a_changed_instance_replaces_only_the_file_that_it_came_from(hosts):
    first, second = hosts
    name = "box/instance.yaml"
    mine, other = first.folder / name, second.folder / name
    mine.parent.mkdir(parents=True)
    mine.write_text("key: box\n")
    assert (first.push().sent, second.pull()) == ([name], 1)
    other.write_text("key: box\ngpu: L4\n")
    assert second.push().sent == [name]
    assert (first.pull(), mine.read_text()) == (1, "key: box\ngpu: L4\n")
    other.write_text("key: box\ngpu: A4\n")
    assert second.push().sent == [name]
    mine.write_text("key: box\ngpu: T4\n")
    first.pull()
    assert (first.push().refused, mine.read_text()) == ([name], "key: box\ngpu: T4\n")
    assert second.pull() == 0


def test_a_run_is_sent_and_one_whose_bucket_is_read_only_is_kept(variables, bucket, s3, tmp_path, call):
    words = "results import --instance p5 --mode baseline-bf16 --step-time 0.1 --batch-size 64 --gpus 8 --source x"
    words = (*words.split(), "--results-dir", f"s3://{bucket}/results")
    sent = call(*words)
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{bucket}/*"}
    s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [deny]}))
    kept = call(*words)
    mirror = mirror_of(bucket)
    assert (sent.code, len(names(s3, bucket))) == (0, 1)
    assert kept.code == 5
    assert "not allowed" in kept.stderr
    assert f"fp8bench results push s3://{bucket}/results --results-dir {mirror.folder}" in kept.stderr
    assert len(mirror.pending()) == 1
    s3.delete_bucket_policy(Bucket=bucket)
    assert call(*kept.stderr.split("`")[1].split()[1:]).code == 0
    assert (len(names(s3, bucket)), mirror.pending()) == (2, [])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://no-such-bucket-here/results", "no such bucket"),
        ("s3://AKIA:much-too-secret@bucket/results", "credentials"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line_without_secrets(variables, url, said, call):
    outcome = call("compare", "p5", "--results-dir", url)
    assert (outcome.code, said in one_line(outcome)) == (2, True)
    assert SECRET not in outcome.stderr


def test_no_credentials_are_said(variables, bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    with pytest.raises(UsageError, match="no credentials"):
        Store(parse(f"s3://{bucket}/results"), 20).put("p5/a.json", b"{}")


def test_a_remote_that_hangs_ends_in_time(variables, monkeypatch):
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(Unreachable, match=r"s3://bucket/results did not answer within 0\.5 s"):
            Store(parse("s3://bucket/results"), 0.5).files()


@pytest.mark.parametrize(("url", "package"), [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs")])
def test_a_missing_extra_is_named_with_its_installation_and_a_folder_needs_none(monkeypatch, url, package, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"needs {package}.*pip install 'fp8bench\[remote\]'"):
        Store(parse(url), 20).files()
    with synced(tmp_path, measuring=False) as mirror:
        assert mirror is None
