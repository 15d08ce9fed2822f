#!/usr/bin/env python3
"""Mistakes of precision in PyTorch models (planted_models.py): does the lab name the right line of Python?

    python bench/import_check/planted.py --program build/release/gradual-lab --write  # writes bench/results/planted.md
"""

import argparse
import inspect
import json
import pathlib
import re
import subprocess
import tempfile

import safetensors.torch
import torch

import planted_models

here = pathlib.Path(__file__).resolve().parent


def right_lines(case):
    """Of the marked lines of a class: their numbers in the file."""
    lines, first = inspect.getsourcelines(case)
    return {first + i for i, line in enumerate(lines) if line.rstrip().endswith("# bug")}


def data(path, count=400):
    torch.manual_seed(7)
    x = torch.randn(count, 16)
    y = (x @ torch.randn(16, 4)).argmax(-1)
    safetensors.torch.save_file({"x": x, "y": y}, path)
    return x, y


def found(case, recipe, training, program, folder):
    """The verdict, and the findings of the recipe's run as (cause, sentence)."""
    torch.manual_seed(0)
    x, y = data(folder / "data.safetensors")
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(planted_models.Net(case()), (x[:4], y[:4]), dynamic_shapes=(batch, batch))
    file = folder / f"{case.__name__}.pt2"
    torch.export.save(exported, file)
    out = folder / case.__name__
    command = [program, "--quiet", "--model", file, "--data", f"safetensors:{folder / 'data.safetensors'}"]
    command += ["--recipes", f"fp32,{recipe}", "--epochs", "3", "--seeds", "1", "--batch", "40", *training]
    run = subprocess.run([*command, "--out", out], capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
    runs = json.loads((out / "results.json").read_text())["runs"]
    mine = next(r for r in runs if r["recipe"] == recipe)
    return mine["verdict"], [(f["cause"], f["sentence"]) for f in mine["findings"]]


def line_of(sentence):
    lines = re.findall(r"planted_models\.py:(\d+)", sentence)
    return int(lines[0]) if lines else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="gradual-lab")
    parser.add_argument("--cases", default="", help="names of classes, separated by commas (default: all)")
    parser.add_argument("--write", action="store_true", help="write bench/results/planted.md")
    parser.add_argument("--verbose", action="store_true", help="print all findings")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, right = [], 0
    chosen = [c for c in planted_models.CASES if not options.cases or c[0].__name__ in options.cases.split(",")]
    for case, recipe, training in chosen:
        with tempfile.TemporaryDirectory() as folder:
            verdict, findings = found(case, recipe, training, options.program, pathlib.Path(folder))
        cause, sentence = findings[0] if findings else ("none", "")
        line = line_of(sentence)
        is_right = line in right_lines(case)
        right += is_right
        text = (here / "planted_models.py").read_text().splitlines()[line - 1].strip() if line else ""
        text = text.removesuffix("# bug").strip()
        named = "right" if is_right else "wrong" if line else "no line"
        short = verdict.split(":")[0].split("(")[0].strip()
        rows.append(f"| {case.__name__} | {recipe} | {short} | {cause} | {named} | `{text}` |")
        print(rows[-1], flush=True)
        for one in findings if options.verbose else []:
            print("   ", *one, flush=True)
    text = f"""# Mistakes of precision in PyTorch models

`python bench/import_check/planted.py --program build/release/gradual-lab --write`, PyTorch {torch.__version__}. Each
model of `bench/import_check/planted_models.py` has one mistake. It is exported, trained for a few epochs of random data
under fp32 and one recipe, and the lab's first finding names a line of Python. Where two lines make the mistake together
(a value, and the op that it breaks), either is right. The models and their recipes were chosen so that the mistake
shows.

{len(rows)} mistakes: the line is right for {right}.

| mistake | recipe | verdict | cause of the first finding | line | what stands there |
|---|---|---|---|---|---|
{chr(10).join(rows)}
"""
    if options.write:
        (here.parent / "results" / "planted.md").write_text(text)
    print(f"{right} of {len(rows)} right")


if __name__ == "__main__":
    main()
