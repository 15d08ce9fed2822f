#!/usr/bin/env python3
"""Asks gradual-lab judge about healthy steps on other instruction sets and with other kernels, in f32, bf16 and f16.

    python bench/judge/processors.py build/release/gradual-lab --write    # writes bench/results/judge_processors.md

Each step is recorded by PyTorch in a process of its own, whose environment chooses its instructions, and by Gradual in
the same way.
"""

import argparse
import contextlib
import copy
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

import torch

import judge
import models
from record import record_step

here = pathlib.Path(__file__).resolve()

# What the environment says to PyTorch: its own kernels, and oneDNN's.
PYTORCH = {
    "baseline, SSE4.1": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX-512": {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}
GRADUAL = {
    "baseline, Eigen": ({"GRADUAL_CPU_ISA": "baseline"}, "eigen"),
    "AVX2, Eigen": ({"GRADUAL_CPU_ISA": "avx2"}, "eigen"),
    "AVX-512, Eigen": ({"GRADUAL_CPU_ISA": "avx512"}, "eigen"),
    "AVX2, fast kernels": ({"GRADUAL_CPU_ISA": "avx2"}, "fast"),
    "AVX-512, fast kernels": ({"GRADUAL_CPU_ISA": "avx512"}, "fast"),
    "AVX2, oneDNN": ({"GRADUAL_CPU_ISA": "avx2", "DNNL_MAX_CPU_ISA": "AVX2"}, "onednn"),
    "AVX-512, oneDNN": ({"GRADUAL_CPU_ISA": "avx512"}, "onednn"),
}
DTYPES = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}


def made(name, seed):
    torch.manual_seed(100 + seed)
    return models.MODELS[name]()


def file_of(folder, name, dtype, seed):
    return folder / f"{name}_{dtype}_{seed}.safetensors"


def record_all(folder, seeds):
    """In a process of its own: every step as PyTorch computes it."""
    torch.set_num_threads(1)
    for name in models.MODELS:
        for dtype, autocast in DTYPES.items():
            for seed in range(seeds):
                model, args = made(name, seed)
                around = torch.autocast("cpu", dtype=autocast) if autocast else contextlib.nullcontext()
                torch.manual_seed(seed)
                with around:
                    record_step(model, args, models.loss_of, file_of(folder, name, dtype, seed))


def run_here(environment, *command, allowed=(0,)):
    run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if run.returncode not in allowed:
        raise RuntimeError(run.stderr)


class Row:
    """Of a model, a dtype and a recorder: what was judged."""

    def __init__(self):
        self.tensors, self.wrong, self.first, self.nearest = 0, 0, "", 0

    def add(self, wrong, tensors, nearest):
        self.tensors, self.wrong = self.tensors + tensors, self.wrong + len(wrong)
        self.nearest = max(self.nearest, nearest)
        if wrong and not self.first:
            self.first = f"`{wrong[0]['tensor']}` {float(wrong[0]['worst']):.3g}"


def judged(program, name, dtype, seeds, folder):
    rows = {}
    for seed in range(seeds):
        model, args = made(name, seed)
        exported = judge.export(name, copy.deepcopy(model), args, folder)
        for words in PYTORCH:
            theirs = file_of(folder / words, name, dtype, seed)
            rows.setdefault(f"PyTorch, {words}", Row()).add(*judge.judge(program, exported, [theirs]))
        if name == "image":
            continue  # its dropout is random
        for words, (environment, backend) in GRADUAL.items():
            own = folder / "gradual.safetensors"
            options = ["--record", own, "--record-dtype", dtype, "--record-backend", backend]
            run_here(environment, program, "judge", exported, theirs, *options, allowed=(0, 1))
            rows.setdefault(f"Gradual, {words}", Row()).add(*judge.judge(program, exported, [own]))
    return rows


def processor():
    names = (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    return next(names, platform.machine())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--record", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write bench/results/judge_processors.md")
    a = parser.parse_args()
    if a.record:
        record_all(pathlib.Path(a.record), a.seeds)
        return
    lines, rows = [], []
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        for words, environment in PYTORCH.items():
            (folder / words).mkdir()
            run_here(environment, sys.executable, here, a.program, "--seeds", str(a.seeds), "--record", folder / words)
        for name in models.MODELS:
            for dtype in DTYPES:
                for words, row in judged(a.program, name, dtype, a.seeds, folder).items():
                    counts = f"{row.tensors} | {row.wrong} | {row.first} | {row.nearest:.2f}"
                    lines.append(f"| {name} | {dtype} | {words} | {counts} |")
                    print(lines[-1], flush=True)
                    rows.append(row)
    tensors = sum(r.tensors for r in rows)
    wrong = sum(r.wrong for r in rows)
    text = f"""# Healthy steps on other instruction sets and with other kernels

`python bench/judge/processors.py build/release/gradual-lab --write`, PyTorch {torch.__version__}, {processor()}. The
models are those of `bench/judge/models.py`. PyTorch's records are of `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA`,
Gradual's of `GRADUAL_CPU_ISA` and `--record-backend`. bf16 and f16 are autocast.

{len(rows) * a.seeds} judgements of {tensors} tensors: {wrong} tensors were called wrong. The last column is the largest
difference of an element over what rounding explains, among the others: 1 would be called wrong.

| model | dtype | recorded by | tensors | false alarms | the first | nearest |
|---|---|---|---:|---:|---|---:|
{chr(10).join(lines)}
"""
    if a.write:
        (here.parents[2] / "bench" / "results" / "judge_processors.md").write_text(text)


if __name__ == "__main__":
    main()
