"""Copies of NVIDIA's libraries, from the text of /proc/self/maps."""

import pytest

from fp8bench.doctor.facts import copies

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
                f"{USR}/libcudnn.so.9.14.0",
                f"{USR}/libcudnn_graph.so.9.14.0",
                f"{USR}/libcudnn_engines_precompiled.so.9.14.0",
                f"{USR}/libcublasLt.so.13",
            ],
            [("cublas", USR, None), ("cudnn", USR, "9.14.0")],
        ),
        (
            ["/usr/lib/libcudnn.so.9.14.0", "/usr/lib/libcudnn_ops.so.9.19.0"],
            [("cudnn", "/usr/lib", "9.14.0 and 9.19.0")],
        ),
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
