"""What this machine can carry: how much memory a model may take now."""

import os
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


def free_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Bytes that can be taken without swapping, inside the limits of the service or container we run in."""
    machine = _fields(proc / "meminfo").get("MemAvailable:")
    if machine is None:
        # Not Linux: all memory there is, the best that can be known without more packages.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine * 1024, *_cgroup_rooms(proc, cgroups)])


def resident_memory(proc: Path = PROC) -> int:
    """Bytes of memory this process has in use; 0 where that cannot be known."""
    return _fields(proc / "self/status").get("VmRSS:", 0) * 1024


def _cgroup_rooms(proc: Path, cgroups: Path) -> list[int]:
    """What each control group around us leaves free; the tightest one counts."""
    own = next((line[3:] for line in _text(proc / "self/cgroup").splitlines() if line.startswith("0::")), None)
    if own is None:
        return []
    folder = cgroups / own.strip("/")
    rooms = []
    for group in (folder, *folder.parents):
        if not group.is_relative_to(cgroups):
            break
        limit, taken = _text(group / "memory.max").strip(), _text(group / "memory.current").strip()
        if limit.isdigit() and taken.isdigit():
            # Cached file pages count as taken, but the kernel gives them back.
            cached = _fields(group / "memory.stat").get("inactive_file", 0)
            rooms.append(max(0, int(limit) - int(taken) + cached))
    return rooms


def _fields(path: Path) -> dict[str, int]:
    """Lines such as `MemAvailable:  123 kB` as a mapping of first word to number."""
    words = (line.split() for line in _text(path).splitlines())
    return {word[0]: int(word[1]) for word in words if len(word) > 1 and word[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
