#!/usr/bin/env python3
"""Steps of two builds of gradual-compare in turn, as ratios: in_turn.py BINARY_A BINARY_B [MODEL...]

CPU time of a step on one thread, 7 rounds of a quarter second each. Prints the median of A's steps, and B / A: the
median, least and largest of the rounds. What both inherit of the environment (GRADUAL_CPU_ISA, DNNL_MAX_CPU_ISA)
chooses the instruction set; each binary may be a command, as "chroot ROOT /path/gradual-compare".
"""

import shlex
import statistics
import sys

from workers import Worker
from workloads import MODELS

ROUNDS, SECONDS = 7, 0.25


def measure(commands, model, precision):
    workers = [Worker(shlex.split(command)) for command in commands]
    spec = {key: value for key, value in MODELS[model].items() if key != "goal"}
    for worker in workers:
        worker.ask("threads", count=1)
        worker.ask("model", **spec, precision=precision)
        worker.ask("run", steps=2)
    steps = max(1, int(SECONDS * 2 / workers[0].ask("run", steps=2)["seconds"]))
    times = [[] for _ in workers]
    for _ in range(ROUNDS):
        for worker, own in zip(workers, times):
            own.append(worker.ask("run", steps=steps)["cpu"] / steps)
    for worker in workers:
        worker.close()
    ratios = sorted(b / a for a, b in zip(*times))
    print(f"{model:12} {precision:5} {statistics.median(times[0]) * 1e3:9.3f} ms  {statistics.median(ratios):.3f} "
          f"({ratios[0]:.3f}-{ratios[-1]:.3f})", flush=True)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for model in sys.argv[3:] or ("mlp_small", "mlp_medium", "cnn", "resnet_small", "gpt_small"):
        for precision in ("f32", "bf16"):
            measure(sys.argv[1:3], model, precision)


if __name__ == "__main__":
    main()
