import os
from pathlib import Path

from meshai.model.machine import free_memory, resident_memory

MEMINFO = "MemTotal:  2000000 kB\nMemFree:  100000 kB\nMemAvailable:  1500000 kB\nHugePages_Total:  0\n"


def tree(root: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cgroup"


def test_a_machine_without_limits_offers_what_the_kernel_calls_available(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/user.slice\n", "cgroup/user.slice/memory.max": "max\n"}
    assert free_memory(*tree(tmp_path, files)) == 1_500_000 * 1024


def test_the_tightest_group_around_us_counts_and_cached_files_do_not(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "1:name=systemd:/\n0::/system.slice/meshai.service\n",
        "cgroup/system.slice/memory.max": "900000000",
        "cgroup/system.slice/memory.current": "500000000",
        "cgroup/system.slice/memory.stat": "anon 400000000\ninactive_file 100000000\n",
        "cgroup/system.slice/meshai.service/memory.max": "800000000",
        "cgroup/system.slice/meshai.service/memory.current": "100000000",
    }
    assert free_memory(*tree(tmp_path, files)) == 500_000_000


def test_a_group_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "cgroup/memory.max": "100",
        "cgroup/memory.current": "200",
    }
    assert free_memory(*tree(tmp_path, files)) == 0


def test_without_proc_it_is_the_memory_of_the_machine(tmp_path: Path) -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert free_memory(tmp_path / "proc", tmp_path / "cgroup") == total


def test_this_machine_has_some_memory_but_not_more_than_all() -> None:
    assert 0 < free_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_the_memory_of_this_process(tmp_path: Path) -> None:
    proc, _ = tree(tmp_path, {"proc/self/status": "Name:\tpython\nVmRSS:\t   76000 kB\nThreads:\t3\n"})
    assert resident_memory(proc) == 76_000 * 1024
    assert resident_memory(tmp_path / "nowhere") == 0
    assert resident_memory() > 10_000_000
