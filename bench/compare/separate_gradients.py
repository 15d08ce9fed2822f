#!/usr/bin/env python3
"""What `linear_backward_weight` gains, which gives the gradients of a linear layer's weight and bias on a GPU as one
op: separate_gradients.py BINARY [DEVICE]

Time of a step with two ops divided by that with one, in turn, 15 rounds of a quarter second each: the median, and the
quartiles. An op of its own stays if it gains 5% of a model's step (CONTRIBUTING.md).
"""

import statistics
import sys

from workers import Worker
from workloads import GPU_MODELS, MODELS

ROUNDS, SECONDS = 15, 0.25
PRECISIONS = ("f32", "f16", "bf16")


def measure(binary, device, name, model, precision):
    workers = [Worker([binary]), Worker([binary])]
    spec = {key: value for key, value in model.items() if key not in ("goal", "compiled")}
    for worker, variant in zip(workers, ([], ["separate_gradients"])):
        worker.ask("device", name=device)
        worker.ask("model", **spec, precision=precision, variant=variant)
        worker.ask("run", steps=2)
    steps = max(1, int(SECONDS * 2 / workers[0].ask("run", steps=2)["seconds"]))
    times = [[worker.ask("run", steps=steps)["seconds"] / steps for worker in workers] for _ in range(ROUNDS)]
    for worker in workers:
        worker.close()
    low, middle, high = statistics.quantiles([two / one for one, two in times], n=4)
    print(f"{name:12} {precision:5} {middle:.3f} ({low:.3f}-{high:.3f})", flush=True)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    device = sys.argv[2] if len(sys.argv) == 3 else "cuda"
    models = {name: model for name, model in {**MODELS, **GPU_MODELS}.items() if model["kind"] in ("mlp", "gpt")}
    for name, model in models.items():
        if device == "cpu" and name in GPU_MODELS:
            continue
        for precision in PRECISIONS:
            measure(sys.argv[1], device, name, model, precision)


if __name__ == "__main__":
    main()
