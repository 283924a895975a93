"""Copies of NVIDIA's libraries, from the text of /proc/self/maps."""

from fp8bench.doctor.mapped import copies

LINE = "7f00-7f01 r-xp 00000000 08:01 12345 {}\n"


def maps(*paths: str) -> str:
    return (
        "".join(LINE.format(path) for path in paths) + "7f00-7f01 rw-p 00000000 00:00 0\n7f00 rw-p 0 00:00 0 [heap]\n"
    )


def told(text: str) -> list[tuple[str, str, str | None]]:
    return [(copy.family, copy.folder, copy.version) for copy in copies(text)]


def test_the_parts_of_one_cudnn_are_one_copy():
    text = maps(
        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.14.0",
        "/usr/lib/x86_64-linux-gnu/libcudnn_graph.so.9.14.0",
        "/usr/lib/x86_64-linux-gnu/libcudnn_engines_precompiled.so.9.14.0",
        "/usr/lib/x86_64-linux-gnu/libcublasLt.so.13",
    )

    assert told(text) == [
        ("cublas", "/usr/lib/x86_64-linux-gnu", None),
        ("cudnn", "/usr/lib/x86_64-linux-gnu", "9.14.0"),
    ]


def test_two_folders_are_two_copies_and_no_home_is_named(tmp_path):
    site = tmp_path / "alice" / "site-packages"
    (site / "nvidia_cudnn_cu13-9.19.0.56.dist-info").mkdir(parents=True)
    (site / "nvidia_cudnn_frontend-1.14.0.dist-info").mkdir()

    text = maps(f"{site}/nvidia/cudnn/lib/libcudnn.so.9", "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.14.0")

    assert sorted(told(text)) == [
        ("cudnn", "/usr/lib/x86_64-linux-gnu", "9.14.0"),
        ("cudnn", "site-packages/nvidia/cudnn/lib", "9.19.0.56"),
    ]
    assert "alice" not in str(copies(text))


def test_files_of_two_versions_in_one_folder_are_told():
    assert told(maps("/usr/lib/libcudnn.so.9.14.0", "/usr/lib/libcudnn_ops.so.9.19.0")) == [
        ("cudnn", "/usr/lib", "9.14.0 and 9.19.0")
    ]


def test_a_version_that_nobody_tells_is_unknown():
    assert [str(copy) for copy in copies(maps("/opt/x/lib/libcudnn.so.9"))] == ["of unknown version (lib)"]


def test_what_only_sounds_alike_is_left_out():
    assert (
        copies(maps("/usr/lib/libcudnn_frontend.so.1.2.3", "/x/libnccl_ep.so", "/x/libnccl-net.so", "/x/libm.so.6"))
        == ()
    )


def test_a_deleted_file_and_a_blank_in_the_path():
    assert told(maps("/usr/lib/my cuda/libnccl.so.2.28.9 (deleted)")) == [("nccl", "/usr/lib/my cuda", "2.28.9")]
