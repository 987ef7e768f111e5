"""What the doctor reads of a machine, from planted files: none of it is what is here."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import blockyard as by
from blockyard.crane.tiers.disk_folders import identities
from blockyard.testing.simulated_gpu import SimulatedGpu
from blockyard.tools.doctor import build, disk, gpu, host, pinned
from blockyard.tools.doctor.finding import Check, Demand, Finding, Site
from blockyard.tools.doctor.probe import probe
from disks import opened

GIB = 1 << 30
MEMINFO = """MemTotal:       65831764 kB
MemFree:         1000000 kB
MemAvailable:   62914560 kB
SwapTotal:       8388608 kB
SwapFree:        8388608 kB
"""


def planted(root: Path, files: dict[str, str], **asked: Any) -> Site:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Site(root=root, environ={}, asked=Demand(**asked), locks=lambda _: False)


Row = tuple[Check, dict[str, str], dict[str, Any], str, str]
ROWS: dict[str, Row] = {
    # What is looked at, what is planted, what is asked, the level, and what the finding says.
    "cores": (host.cores, {"proc/self/status": "Cpus_allowed_list:\t0-3,8\n"}, {}, "ok", "5 may"),
    "fewer cores than ranks": (
        host.cores,
        {"proc/self/status": "Cpus_allowed_list:\t0-3"},
        {"ranks": 8},
        "warn",
        "--cpus 9",
    ),
    "a quota": (
        host.cores,
        {
            "proc/self/status": "Cpus_allowed_list: 0-63",
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            "sys/fs/cgroup/a/cpu.max": "150000 100000",
        },
        {"ranks": 2},
        "warn",
        "1.5 by the container",
    ),
    "a quota of version 1": (
        host.cores,
        {
            "proc/self/status": "Cpus_allowed_list: 0-63",
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us": "100000",
        },
        {"ranks": 3},
        "ok",
        "4 by the container",
    ),
    "no status": (host.cores, {}, {}, "unknown", "cannot be read"),
    "a status of nonsense": (
        host.cores,
        {"proc/self/status": "Cpus_allowed_list: 0-\x003,²"},
        {},
        "unknown",
        "cannot be read",
    ),
    "memory": (
        host.memory,
        {"proc/meminfo": MEMINFO},
        {"host": 40 * GIB},
        "ok",
        "60.0 GiB are free",
    ),
    "little memory": (host.memory, {"proc/meminfo": MEMINFO}, {"host": 55 * GIB}, "warn", "48 GiB"),
    "less than a GiB": (
        host.memory,
        {"proc/meminfo": "MemAvailable: 524288 kB"},
        {"host": GIB},
        "fail",
        '"host": "409 MiB"',
    ),
    "too little memory": (
        host.memory,
        {"proc/meminfo": MEMINFO},
        {"host": 64 * GIB},
        "fail",
        'as "host": "48 GiB"',
    ),
    "memory of a container": (
        host.memory,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": str(16 * GIB),
            "sys/fs/cgroup/memory.current": str(10 * GIB),
            "sys/fs/cgroup/memory.stat": f"file {3 * GIB}\nshmem {GIB}\n",
        },
        {"host": 9 * GIB},
        "fail",
        "8.00 GiB are free in the container",
    ),
    "memory of a container of version 1": (
        host.memory,
        {
            "proc/self/cgroup": "9:memory:/x",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
        },
        {"host": GIB},
        "ok",
        "3.00 GiB are free in the container",
    ),
    "no meminfo": (host.memory, {}, {"host": GIB}, "unknown", "cannot be read"),
    "a meminfo of nonsense": (
        host.memory,
        {"proc/meminfo": "MemAvailable: many kB\n\x00\xff::"},
        {},
        "unknown",
        "cannot be read",
    ),
    "shared memory": (host.shared_memory, {"dev/shm/x": ""}, {"shared": 1}, "ok", "are free"),
    "no room for all ranks": (
        host.shared_memory,
        {"dev/shm/x": ""},
        {"shared": 1 << 60},
        "fail",
        "--shm-size=1073741824g",
    ),
    "no shared memory": (host.shared_memory, {}, {"shared": 1}, "unknown", "cannot be looked at"),
    "swap": (host.swap, {"proc/meminfo": MEMINFO}, {}, "ok", "0 B of 8.00 GiB"),
    "no swap": (host.swap, {"proc/meminfo": "SwapTotal: 0 kB\nSwapFree: 0 kB"}, {}, "ok", "none"),
    "swap in use": (
        host.swap,
        {"proc/meminfo": MEMINFO.replace("SwapFree:        8", "SwapFree: 1")},
        {},
        "warn",
        "swapoff",
    ),
    "nothing of swap": (
        host.swap,
        {"proc/meminfo": "SwapTotal: x"},
        {},
        "unknown",
        "cannot be read",
    ),
    "one node": (host.numa, {"sys/devices/system/node/online": "0\n"}, {}, "ok", "1 node"),
    "a far node": (
        host.numa,
        {
            "sys/devices/system/node/online": "0-1",
            "sys/devices/system/node/node1/meminfo": "Node 1 MemFree:   1048576 kB\n",
            "sys/bus/pci/drivers/nvidia/0000:41:00.0/numa_node": "1\n",
        },
        {"host": 2 * GIB},
        "warn",
        "the GPUs are at 1, where 1.00 GiB are free",
    ),
    "a GPU at no node": (
        host.numa,
        {
            "sys/devices/system/node/online": "0-3",
            "sys/bus/pci/drivers/nvidia/0000:41:00.0/numa_node": "-1",
        },
        {"host": 2 * GIB},
        "ok",
        "4 nodes",
    ),
    "no nodes": (host.numa, {}, {}, "unknown", "no nodes"),
    "huge pages": (
        host.pages,
        {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never"},
        {},
        "ok",
        "madvise",
    ),
    "no huge pages": (
        host.pages,
        {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"},
        {},
        "warn",
        "echo madvise",
    ),
    "pages of nonsense": (
        host.pages,
        {"sys/kernel/mm/transparent_hugepage/enabled": "[]"},
        {},
        "unknown",
        "cannot be read",
    ),
    "no limit": (
        pinned.limit,
        {"proc/self/limits": "Max locked memory         unlimited    unlimited   bytes\n"},
        {"pinned": 1 << 40},
        "ok",
        "unlimited",
    ),
    "a limit": (
        pinned.limit,
        {"proc/self/limits": "Max locked memory         8388608    8388608   bytes\n"},
        {"pinned": 64 * GIB},
        "warn",
        "--ulimit memlock=-1",
    ),
    "nobody pins": (
        pinned.limit,
        {"proc/self/limits": "Max locked memory         8388608    8388608   bytes\n"},
        {},
        "ok",
        "8.00 MiB may be locked",
    ),
    "no limits": (
        pinned.limit,
        {"proc/self/limits": "Max locked memory"},
        {},
        "unknown",
        "cannot be read",
    ),
    "one piece": (pinned.registration, {}, {"piece": 512 * GIB}, "fail", "500 GiB/rank"),
    "a piece that fits": (pinned.registration, {}, {"piece": 511 * GIB}, "ok", "511"),
    "a processor": (
        build.processor,
        {"proc/cpuinfo": "model name : A\nflags : fpu sha_ni\n"},
        {},
        "ok",
        "A, with instructions",
    ),
    "of another kind": (
        build.processor,
        {"proc/cpuinfo": "Features : fp aes\n"},
        {},
        "ok",
        "without instructions",
    ),
    "no processor": (build.processor, {}, {}, "unknown", "cannot be read"),
    "no GPU": (gpu.driver, {}, {}, "unknown", "no GPU"),
    "no driver": (
        gpu.driver,
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
        },
        {},
        "fail",
        "install NVIDIA's driver",
    ),
    "another's card": (
        gpu.driver,
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x1002",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030000",
        },
        {},
        "unknown",
        "no GPU",
    ),
    "a link": (
        gpu.link,
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
            "sys/bus/pci/devices/0000:01:00.0/current_link_width": "16",
            "sys/bus/pci/devices/0000:01:00.0/max_link_width": "16",
        },
        {},
        "ok",
        "x16 of x16",
    ),
    "a narrow link": (
        gpu.link,
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
            "sys/bus/pci/devices/0000:01:00.0/current_link_width": "4",
            "sys/bus/pci/devices/0000:01:00.0/max_link_width": "16",
        },
        {},
        "warn",
        "0000:01:00.0 x4 of x16",
    ),
    "a link of unknown width": (
        gpu.link,
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200",
            "sys/bus/pci/devices/0000:01:00.0/current_link_width": "Unknown",
        },
        {},
        "unknown",
        "cannot be read",
    ),
}


VERSIONS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    "GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)\n": "535.104.05, 1 GPU",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  "
    "(nixbld@)  \nGCC version:  gcc version 15.3.0 (GCC) \n": "580.159.04, 1 GPU",
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build": "570.86",
    "": "of CUDA 13.0, its version is hidden, 1 GPU",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_driver_is_read_in_each_of_its_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    card = {
        "sys/bus/pci/devices/0000:00:06.0/vendor": "0x10de",
        "sys/bus/pci/devices/0000:00:06.0/class": "0x030200",
    }
    site = planted(tmp_path, card | {"proc/driver/nvidia/version": version})
    monkeypatch.setattr(gpu, "_cuda", lambda: 13000)
    same(gpu.driver(site), "ok", VERSIONS[version])
    monkeypatch.setattr(gpu, "_cuda", lambda: None)
    says = "libcuda.so.1 is not here" if version else "install NVIDIA's driver"
    same(gpu.driver(site), "fail", says)


def same(found: Finding, level: str, says: str) -> None:
    assert found.level == level, found
    assert says in " ".join(found), found
    assert bool(found.means and found.do) == (level in {"warn", "fail"}), found


@pytest.mark.parametrize("name", ROWS)
def test_each_fact_is_read_from_the_system(tmp_path: Path, name: str) -> None:
    check, files, asked, level, says = ROWS[name]
    same(check(planted(tmp_path, files, **asked)), level, says)


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00\n:::\n", b"9" * 5000, b"[" * 99, b"-1 -1\n"])
def test_a_system_that_speaks_nonsense_fails_nothing(tmp_path: Path, garbage: bytes) -> None:
    names = {name for _, files, *_ in ROWS.values() for name in files} | {"proc/self/mountinfo"}
    site = planted(tmp_path, dict.fromkeys(names, ""), host=1, pinned=1, paths=(tmp_path,))
    for name in names:
        (tmp_path / name).write_bytes(garbage)
    for check in (*host.CHECKS, *pinned.CHECKS, build.processor, gpu.link):
        assert check(site).level in {"ok", "unknown"}, check
    assert disk.file_system(tmp_path, site).level == "unknown"


def test_folders_in_the_place_of_files_fail_nothing(tmp_path: Path) -> None:
    for name in {name for _, files, *_ in ROWS.values() for name in files}:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    site = planted(tmp_path, {}, host=1, pinned=1)
    for check in (*host.CHECKS, *pinned.CHECKS, build.processor, gpu.link):
        assert check(site).level in {"ok", "unknown"}, check


def test_who_may_lock_more_than_the_limit_is_told_by_a_lock(tmp_path: Path) -> None:
    _, files, asked, *_ = ROWS["a limit"]
    tried: list[int] = []

    def locks(nbytes: int) -> bool:
        tried.append(nbytes)
        return True

    site = planted(tmp_path, files, **asked)
    site = Site(root=site.root, asked=site.asked, locks=locks)
    same(pinned.limit(site), "ok", "this user may lock more")
    assert tried == [1 << 16 << at for at in range(9)]
    assert isinstance(Site().locks(1 << 12), bool)


def test_a_slow_clock_is_named() -> None:
    same(host.judged_clock("hpet", 1500), "warn", "hpet, 1500 ns a call")
    same(host.judged_clock(None, 60), "ok", "an unknown source")
    assert host.clock(Site()).name == "clock"


def test_the_core_the_package_and_the_stub_are_of_one_version() -> None:
    stub = '__all__ = ["Cache", "Lease"]\n'
    same(build.judged_core(by.__version__, stub), "ok", by.__version__)
    same(build.judged_core("0.0.1", stub), "fail", "and the package is 0.0.1")
    same(build.judged_core(by.__version__, '__all__ = ["Gone"]'), "fail", "without Gone")
    assert build.core(Site()).level == "ok"
    assert {check(Site()).level for check in (build.python, build.extras)} == {"ok"}


@pytest.mark.parametrize(
    ("packages", "cuda", "level", "says"),
    [
        ({"cupy-cuda12x": "14.2"}, 12080, "ok", "CUDA 12.8"),
        ({"cupy-cuda12x": "14.2"}, 13000, "ok", "CUDA 13.0"),
        ({"cupy-cuda13x": "14.2"}, 12080, "fail", "the driver is too old"),
        ({"cupy-cuda12x": "1", "cupy-cuda13x": "1"}, 13000, "fail", "lie over each other"),
        ({}, 12080, "fail", "[cuda12]"),
        ({}, None, "unknown", "no driver"),
    ],
)
def test_cupy_and_the_driver_go_together(
    packages: dict[str, str], cuda: int | None, level: str, says: str
) -> None:
    same(gpu.judged_cupy(packages, cuda), level, says)


@pytest.mark.parametrize(
    ("found", "most", "asked", "level", "says"),
    [
        ({"up": 50.0, "down": 48.0, "free": 1 << 36}, 63.0, 0, "ok", "50.0 GB/s up"),
        ({"up": 12.0, "down": 12.0, "free": 1 << 36}, 63.0, 0, "warn", "the link has 63 GB/s"),
        ({"up": 12.0, "down": 12.0, "free": 1 << 30}, None, 1 << 31, "fail", "asks for 2.00 GiB"),
        ({"up": 1.0, "down": 1.0, "free": 0, "mode": "prohibited"}, None, 0, "fail", "-c DEFAULT"),
        ({"error": "out of memory"}, None, 0, "fail", "out of memory"),
    ],
)
def test_copies_are_judged_beside_the_link(
    found: dict[str, Any], most: float | None, asked: int, level: str, says: str
) -> None:
    same(gpu.judged_copies(found, most, asked), level, says)


def test_the_probe_copies_both_ways_and_gives_all_back() -> None:
    device = SimulatedGpu()
    rates = probe(device, 1 << 16)
    assert rates["up"] > 0
    assert rates["down"] > 0
    with pytest.raises(by.Unavailable, match="cannot be pinned"):
        probe(SimulatedGpu(pins=0), 1 << 16)


def folder(path: Path, mode: int = 0o700) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def of(check: Callable[[Path, Site], Finding], path: Path, **asked: Any) -> Finding:
    found = check(path, Site(asked=Demand(paths=(path,), **asked)))
    assert found.name.endswith(f" {path}")
    return found


def test_a_folder_that_can_be_one_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    own = folder(tmp_path / "kv")
    for path in (own, own / "not yet"):
        site = Site(asked=Demand(paths=(path,), disk=1 << 20))
        found = {check.func: check(site) for check in disk.checks(site)}  # type: ignore[attr-defined]
        assert {one.level for one in found.values()} <= {"ok", "warn", "unknown"}
        assert found[disk.folder].level == found[disk.room].level == "ok"
        assert "GB/s written" in found[disk.speed].fact
        assert list(own.iterdir()) == []


def test_what_a_disk_tier_refuses_is_told_before(tmp_path: Path) -> None:
    shared, file = folder(tmp_path / "shared", 0o777), tmp_path / "file"
    file.write_text("")
    (tmp_path / "link").symlink_to(shared)
    for path, says in (
        (shared, "chmod go-w"),
        (file, "give a folder"),
        (tmp_path / "link", "symbolic link"),
        (tmp_path / "no" / "such", f"mkdir -p {tmp_path}/no"),
    ):
        same(of(disk.folder, path), "fail", says)
    for check in (disk.room, disk.direct, disk.speed):
        assert of(check, tmp_path / "no" / "such").level == "unknown"
    layout = by.KVLayout.llama(layers=1, kv_heads=1, head_dim=8)
    names = {"model": "m", "weights": "w"}
    path = folder(tmp_path / "kv")
    with by.local(layout, device=4, disk=4, disk_path=path, namespace=names):
        same(of(disk.folder, path), "warn", f"owned by process {os.getpid()}")
    same(of(disk.folder, path), "ok", "1 identities")


def test_a_folder_that_depends_on_where_one_is_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = of(disk.folder, Path("kv"))
    same(found, "warn", "it will be made")
    assert found.do == f"write {tmp_path}/kv"


def gpus(count: int) -> dict[str, str]:
    where = "sys/bus/pci/devices/0000:0{}:00.0/{}"
    named = {"class": "0x030200", "vendor": "0x10de"}
    return {where.format(at, name): text for at in range(count) for name, text in named.items()}


@pytest.mark.parametrize(
    ("count", "visible", "ranks", "level", "says"),
    [
        (4, None, 4, "ok", "4 on the bus"),
        (2, None, 4, "fail", "2 on the bus, and 4 processes compute"),
        (0, None, 4, "unknown", "no GPU"),
        (8, "0,1", 4, "fail", "CUDA_VISIBLE_DEVICES=0,1 shows 2"),
        (2, "GPU-1a,GPU-2b", 2, "ok", "shows 2"),
        # As it is written for an engine on the CPU.
        (2, "", 1, "warn", "shows 0"),
        (2, "-1", 1, "warn", "shows 0"),
        (0, None, 0, "unknown", "no GPU"),
    ],
)
def test_there_is_a_gpu_for_each_rank(
    tmp_path: Path, count: int, visible: str | None, ranks: int, level: str, says: str
) -> None:
    site = planted(tmp_path, gpus(count), ranks=ranks)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    same(gpu.enough(replace(site, environ=environ)), level, says)


def test_a_disk_without_room_or_too_slow_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "kv")
    same(of(disk.room, path, disk=1 << 60), "fail", "its room is taken at the start")
    same(of(disk.speed, path, load=1), "warn", "block_costs says")


def test_a_disk_without_room_names_whose_may_be_had(tmp_path: Path) -> None:
    path = folder(tmp_path / "k v")
    for weights in ("v1", "v2"):
        names = {"model": "m", "weights": weights}
        opened(path, disk=8, namespace=names).close()
    one, two = sorted(identities(path), key=lambda one: (one.used, one.name))
    files = os.statvfs(path)
    found = of(disk.room, path, disk=files.f_bavail * files.f_frsize + (1 << 40))
    assert f"blockyard disk wipe '{path}' {one.name} {two.name};" in found.do
    assert "set disk_reclaim" in found.do
    assert "(model: m; weights: v1; " in found.do
    with opened(path, disk=8, namespace={"model": "m", "weights": "v1"}):
        owned = of(disk.room, path, disk=1 << 60)
        assert "v1" not in owned.do
        assert "v2" in owned.do
    same(of(disk.room, folder(tmp_path / "empty"), disk=1 << 60), "fail", "is not there")


@pytest.mark.skipif(not os.geteuid(), reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    same(of(disk.folder, folder(tmp_path / "kv", 0o500)), "fail", "may not write")


@pytest.mark.parametrize(
    ("mounts", "level", "says"),
    [
        (["/ ext4", "{} xfs"], "ok", "xfs"),
        (["{} xfs", "/ ext4"], "ok", "xfs"),
        (["/ overlay"], "warn", "goes with the container"),
        (["/ ext4", "{} tmpfs"], "warn", "it is memory"),
        (["/ ext4", "{} nfs4"], "warn", "another machine"),
        (["/ ext4", "{} fuse.gcsfuse"], "warn", "another machine"),
        (["/other xfs"], "unknown", "cannot be read"),
    ],
)
def test_the_file_system_is_the_one_that_is_mounted_there(
    tmp_path: Path, mounts: list[str], level: str, says: str
) -> None:
    path = folder(tmp_path / "a folder")
    escaped = str(path).replace(" ", "\\040")
    pairs = (one.format(escaped).split() for one in mounts)
    text = "".join(f"1 1 0:1 / {where} rw - {kind} x rw\n" for where, kind in pairs)
    site = planted(tmp_path / "root", {"proc/self/mountinfo": text})
    same(disk.file_system(path, site), level, says)


def test_a_file_system_without_direct_writes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path / "kv")
    opened: Callable[..., int] = os.open

    def refuses(name: Any, flags: int, *more: Any, **keywords: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(name, flags, *more, **keywords)

    monkeypatch.setattr(os, "open", refuses)
    same(disk.direct(path, Site()), "warn", "not here")
