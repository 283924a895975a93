"""Nothing that the doctor shows names the machine, its user, or what opens a door; copies of NVIDIA's libraries are
told by folders that name nobody.
"""

import pytest

from fp8bench.doctor.check import copies
from fp8bench.doctor.privacy import names_of_this_machine, scrub


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("OSError: /home/alice/x/libnccl.so: too short", "OSError: libnccl.so: too short"),
        ("GPU-1a2b3c4d-1a2b-1a2b-1a2b-1a2b3c4d5e6f is lost", "*** is lost"),
        ("no route to 10.1.2.3", "no route to ***"),
        ("store at 54.2.3.4:29500", "store at ***:29500"),
        ("cublas 13.4.1.3 and cudnn 9.26.0.51", "cublas 13.4.1.3 and cudnn 9.26.0.51"),
        ("driver 10.2.1", "driver 10.2.1"),
        ("see http://www.nvidia.com/Download/index.aspx", "see http://www.nvidia.com/Download/index.aspx"),
        ("bigbox refused alice, said bigbox.", "*** refused ***, said ***."),
        ("malice", "malice"),
        ("64.0 GiB free of /dev/shm/x", "64.0 GiB free of /dev/shm/x"),
        # A path does not say whose it is.
        ("/home/alice/.venv/lib/python3.11/site-packages/nvidia/cudnn/lib", "site-packages/nvidia/cudnn/lib"),
        ("/usr/lib/python3/dist-packages/torch/lib", "dist-packages/torch/lib"),
        ("/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"),
        ("/home/alice", "~"),
        ("/data/alice/lib/", "lib"),
    ],
)
def test_quoted_text_is_cleaned_and_figures_stay(text, clean):
    assert scrub(text, {"bigbox", "alice"}) == clean


def test_secrets_of_the_environment_are_names_to_hide():
    environ = {"HF_TOKEN": "hf_abcdefgh", "AWS_SECRET_ACCESS_KEY": "abc123456", "MY_KEY": "1", "HOSTNAME": "node-17"}
    names = names_of_this_machine(environ)
    assert {"hf_abcdefgh", "abc123456", "node-17"} <= names
    assert not {"1", "root"} & names


USR = "/usr/lib/x86_64-linux-gnu"
NO_FILES = "7f00-7f01 rw-p 00000000 00:00 0\n7f00 rw-p 0 00:00 0 [heap]\n"


def told(*paths):
    lines = "".join(f"7f00-7f01 r-xp 00000000 08:01 12345 {path}\n" for path in paths)
    return [(copy.family, copy.folder, copy.version) for copy in copies(lines + NO_FILES)]


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (
            [
                f"{USR}/lib{name}"
                for name in ("cublasLt.so.13", "cudnn.so.9.14.0", "cudnn_engines_precompiled.so.9.14.0")
            ],
            [("cublas", USR, None), ("cudnn", USR, "9.14.0")],
        ),
        ([f"{USR}/libcudnn.so.9.14.0", f"{USR}/libcudnn_ops.so.9.19.0"], [("cudnn", USR, "9.14.0 and 9.19.0")]),
        (["/opt/x/lib/libcudnn.so.9"], [("cudnn", "lib", None)]),
        (["/usr/lib/libcudnn_frontend.so.1.2.3", "/x/libnccl_ep.so", "/x/libnccl-net.so", "/x/libm.so.6"], []),
        (["/usr/lib/my cuda/libnccl.so.2.28.9 (deleted)"], [("nccl", "/usr/lib/my cuda", "2.28.9")]),
    ],
    ids=["parts of one", "two versions", "no version", "sounds alike", "deleted, with a blank"],
)
def test_copies_are_told_by_family_and_folder(paths, found):
    assert told(*paths) == found


def test_two_folders_are_two_copies_and_no_home_is_named(tmp_path):
    site = tmp_path / "alice" / "site-packages"
    (site / "nvidia_cudnn_cu13-9.19.0.56.dist-info").mkdir(parents=True)
    (site / "nvidia_cudnn_frontend-1.14.0.dist-info").mkdir()
    assert sorted(told(f"{site}/nvidia/cudnn/lib/libcudnn.so.9", f"{USR}/libcudnn.so.9.14.0")) == [
        ("cudnn", USR, "9.14.0"),
        ("cudnn", "site-packages/nvidia/cudnn/lib", "9.19.0.56"),
    ]
