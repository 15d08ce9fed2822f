"""What a timing depends on besides the code: the machine, and what else it did meanwhile."""

import os
import platform
import subprocess


def _first_fields():
    fields = {}
    try:
        with open("/proc/cpuinfo") as info:
            for line in info:
                name, _, value = line.partition(":")
                fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    return fields


def describe():
    cpu = _first_fields()
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "family": f"family {cpu.get('cpu family', '?')}, model {cpu.get('model', '?')}",
        "virtual": "hypervisor" in flags,
        "extensions": [f for f in ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16") if f in flags],
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
    }


def commit(folder):
    """The commit of the checkout; GRADUAL_COMMIT if the checkout has no .git."""
    def git(*arguments):
        return subprocess.run(["git", "-c", "safe.directory=*", *arguments], cwd=folder, capture_output=True, text=True,
                              check=True).stdout.strip()
    try:
        edited = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + (" with changes" if edited else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("GRADUAL_COMMIT", "unknown")


class Meanwhile:
    """The share of the machine's processor time that other programs, and other guests of its host, took since this was
    made. Call `shares` when all children have been waited for."""

    def __init__(self):
        self.start = self._ticks(), self._own()

    @staticmethod
    def _ticks():
        try:
            with open("/proc/stat") as stat:
                return [int(x) for x in stat.readline().split()[1:9]]
        except (OSError, ValueError):
            return None

    @staticmethod
    def _own():
        t = os.times()
        return (t.user + t.system + t.children_user + t.children_system) * os.sysconf("SC_CLK_TCK")

    def shares(self):
        ticks, own = self._ticks(), self._own()
        if ticks is None or self.start[0] is None:
            return None
        user, nice, system, idle, iowait, irq, softirq, steal = (b - a for a, b in zip(self.start[0], ticks))
        total = max(1, user + nice + system + idle + iowait + irq + softirq + steal)
        return {"others": max(0.0, (user + nice + system - (own - self.start[1])) / total), "stolen": steal / total}
