#!/usr/bin/env python3
"""Exports models with PyTorch, runs them with Gradual, compares, and writes bench/results/import.md.

    ./dev import-check [--models NAME,NAME] [--out FILE] [--work DIR]
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import time
import traceback

import safetensors.torch
import torch

import models
import reference

AIMS = {"f64": 1e-10, "f32": 1e-4}


def export(name, folder):
    """Writes NAME.pt2 and what PyTorch computes for it; reuses what is there."""
    file = folder / f"{name}.pt2"
    wanted = {kind: folder / f"{name}.{kind}.safetensors" for kind in AIMS}
    if file.exists() and all(w.exists() for w in wanted.values()):
        return file, wanted
    torch.manual_seed(0)
    model, args, kwargs = models.MODELS[name]()
    models.without_randomness(model.train())
    batch = torch.export.Dim("batch")
    dynamic = lambda t: {0: batch}
    try:
        shapes = {k: dynamic(v) for k, v in kwargs.items()} if kwargs else tuple(dynamic(a) for a in args)
        program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    except Exception:  # some models fix their batch
        program = torch.export.export(model, args, kwargs)
    torch.export.save(program, file)
    names = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    given = list(args) + list(kwargs.values())
    cotangents = None
    for kind, path in wanted.items():
        program = torch.export.load(file)
        named = reference.run(program, args, kwargs, cotangents, double=kind == "f64")
        count = sum(1 for k in named if k.startswith("output."))
        cotangents = [named.get(f"cotangent.{i}") for i in range(count)]
        named.update({f"input.{n}": t.contiguous().clone() for n, t in zip(names, given) if isinstance(t, torch.Tensor)})
        safetensors.torch.save_file({k: t.clone() for k, t in named.items()}, path)
    return file, wanted


def largest(t):
    return t.abs().max().item() if t.numel() else 0.0


def compare(wanted, got):
    """The largest relative difference of outputs, gradients and buffers, and where it is."""
    least = max([largest(t) for k, t in wanted.items() if k.startswith("grad.")] or [0]) / 100
    worst = {"output": (0.0, ""), "grad": (0.0, ""), "buffer": (0.0, "")}
    for key, t in wanted.items():
        kind = "output" if key == "loss" else key.split(".")[0]
        if kind not in worst or t.numel() == 0:
            continue
        if key not in got or got[key].shape != t.shape:
            return {**worst, kind: (float("inf"), key)}
        t, mine = t.double(), got[key].double()
        apart = (t - mine).abs()
        apart[(t == mine) | (t.isnan() & mine.isnan())] = 0
        error = largest(apart.nan_to_num(float("inf"))) / max(largest(t.nan_to_num(0)), least if kind == "grad" else 1e-3)
        if error > worst[kind][0]:
            worst[kind] = (error, key)
    return worst


def check(name, folder, program):
    row = {"model": name}
    try:
        start = time.time()
        file, wanted = export(name, folder)
        row["export"] = time.time() - start
        model = json.loads(subprocess.run(["unzip", "-p", str(file), "*/models/model.json"], capture_output=True).stdout)
        row["nodes"] = len(model["graph_module"]["graph"]["nodes"])
        for kind, path in wanted.items():
            out = folder / f"{name}.{kind}.out"
            run = subprocess.run([program, file, path, out, kind], capture_output=True, text=True, timeout=600)
            if run.returncode:
                row["error"] = f"{kind}: {run.stderr.strip() or run.returncode}"
                return row
            row[kind + "_seconds"] = [float(s) for s in run.stdout.split()]
            got = safetensors.torch.load_file(out)
            row[kind] = compare(safetensors.torch.load_file(path), got)
            out.unlink()
        exact = safetensors.torch.load_file(wanted["f64"])  # how far each is from it in f32
        row["torch"] = compare(exact, safetensors.torch.load_file(wanted["f32"]))
        row["gradual"] = compare(exact, got)
    except Exception as e:  # noqa: BLE001: a model that fails is a row of the table
        row["error"] = f"{type(e).__name__}: {e}"
        traceback.print_exc()
    return row


def verdict(row):
    if "error" in row:
        return "error"
    bad = [k for k in AIMS if max(e for e, _ in row[k].values()) > AIMS[k]]
    return "differs in " + ", ".join(bad) if bad else "equal"


def table(rows):
    yield "| model | nodes | verdict | f64: outputs | gradients | buffers | f32: outputs | gradients | buffers |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|---:|"
    for row in rows:
        errors = [f"{row[k][part][0]:.0e}" if k in row else "" for k in AIMS for part in ("output", "grad", "buffer")]
        yield f"| {row['model']} | {row.get('nodes', '')} | {verdict(row)} | {' | '.join(errors)} |"


def page(rows):
    equal = sum(verdict(r) == "equal" for r in rows)
    yield "# Models of PyTorch, imported"
    yield ""
    yield f"`./dev import-check`, {datetime.date.today()}, PyTorch {torch.__version__}: {equal} of {len(rows)} models are equal."
    yield "Each model has random weights and is exported in training mode, with every dropout at 0. Gradual and PyTorch run the"
    yield "exported graph on the same inputs. The numbers are the largest difference, relative to the largest magnitude of the"
    yield "tensor (of gradients at least a hundredth of the model's largest). Equal means at most 1e-10 in f64 and 1e-4 in f32,"
    yield "for outputs, the gradient of every parameter, and the buffers after the call."
    yield ""
    yield from table(rows)
    failed = [r for r in rows if verdict(r) != "equal"]
    if failed:
        yield ""
        yield "What differs:"
        yield ""
        for row in failed:
            places = "; ".join(f"{k} {part} {key} {e:.1e}" for k in AIMS if k in row for part, (e, key) in row[k].items()
                               if e > AIMS[k])
            if "torch" in row:
                torchs, ours = (max(e for e, _ in row[who].values()) for who in ("torch", "gradual"))
                places += f". From PyTorch in f64, PyTorch in f32 differs by {torchs:.1e}, Gradual in f32 by {ours:.1e}"
            yield f"- {row['model']}: " + " ".join((row.get("error") or places).split())[:600]


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="gradual-import-check")
    parser.add_argument("--models", default=",".join(models.MODELS))
    parser.add_argument("--work", type=pathlib.Path, default=here.parents[1] / "build" / "import-check")
    parser.add_argument("--out", type=pathlib.Path, default=here.parent / "results" / "import.md")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rows = []
    for name in options.models.split(","):
        row = check(name, options.work, options.program)
        rows.append(row)
        print(next(iter(list(table([row]))[2:])), row.get("error", "")[:1500], flush=True)
    options.out.write_text("\n".join(page(rows)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
