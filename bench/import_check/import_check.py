#!/usr/bin/env python3
"""Exports models with PyTorch, runs them with Gradual, compares, and writes bench/results/import.md.

    ./dev import-check [--models NAME,NAME] [--keep] [--out FILE] [--work DIR]

--keep takes the rows of models that are not named from an earlier run in the same --work folder.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import textwrap
import time
import traceback

import safetensors.torch
import torch

import models
import models_more
import models_ops
import reference

AIMS = {"f64": 1e-10, "f32": 1e-4}
MODELS = {**models.MODELS, **models_more.MODELS, **models_ops.MODELS}
# In f32 two correct programs differ by their rounding. Gradual is as exact as PyTorch if its distance from PyTorch in
# f64 is at most this many times PyTorch's.
AS_EXACT = 1.5


def export(name, folder):
    """Writes NAME.pt2 and what PyTorch computes for it; reuses what is there."""
    file = folder / f"{name}.pt2"
    wanted = {kind: folder / f"{name}.{kind}.safetensors" for kind in AIMS}
    if file.exists() and all(w.exists() for w in wanted.values()):
        return file, wanted
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
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
        named.update(
            {f"input.{n}": t.contiguous().clone() for n, t in zip(names, given) if isinstance(t, torch.Tensor)}
        )
        safetensors.torch.save_file({k: t.clone() for k, t in named.items()}, path)
    return file, wanted


def largest(t):
    return t.abs().max().item() if t.numel() else 0.0


def compare(wanted, got, alone=False):
    """The largest relative difference of outputs, gradients and buffers, and where it is. `alone`: gradients do not
    belong to one model, so that each is measured by its own size."""
    least = max([largest(t.nan_to_num(0, 0, 0)) for k, t in wanted.items() if k.startswith("grad.")] or [0]) / 100
    if alone or least == 0:
        least = 1e-3
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
        error = largest(apart.nan_to_num(float("inf"))) / max(
            largest(t.nan_to_num(0, 0, 0)), least if kind == "grad" else 1e-3
        )
        if error > worst[kind][0]:
            worst[kind] = (error, key)
    return worst


def own_spread(name, file, wanted):
    """How far PyTorch in f32 is from `wanted`, its results in f64, at most: without oneDNN, and with weights moved to a
    neighbouring number."""
    torch.manual_seed(0)
    _, args, kwargs = MODELS[name]()
    count = sum(1 for k in wanted if k.startswith("output."))
    cotangents = [wanted.get(f"cotangent.{i}") for i in range(count)]
    runs = []
    for moved in (None, 1, 2, 3):
        with torch.backends.mkldnn.flags(enabled=moved is not None):
            named = reference.run(torch.export.load(file), args, kwargs, cotangents, double=False, moved=moved)
        runs.append(compare(wanted, named))
    return {kind: max(run[kind] for run in runs) for kind in runs[0]}


def check(name, folder, program):
    alone = name in models_ops.MODELS
    row = {"model": name, "date": str(datetime.date.today()), "torch_version": torch.__version__}
    try:
        start = time.time()
        file, wanted = export(name, folder)
        row["export"] = time.time() - start
        model = json.loads(
            subprocess.run(["unzip", "-p", str(file), "*/models/model.json"], capture_output=True).stdout
        )
        row["nodes"] = len(model["graph_module"]["graph"]["nodes"])
        for kind, path in wanted.items():
            out = folder / f"{name}.{kind}.out"
            run = subprocess.run(
                [program, "compare", file, path, out, kind], capture_output=True, text=True, timeout=600
            )
            if run.returncode:
                row["error"] = f"{kind}: {run.stderr.strip() or run.returncode}"
                return row
            row[kind + "_seconds"] = [float(s) for s in run.stdout.split()]
            got = safetensors.torch.load_file(out)
            row[kind] = compare(safetensors.torch.load_file(path), got, alone)
            out.unlink()
        exact = safetensors.torch.load_file(wanted["f64"])  # how far each is from it in f32
        row["torch"] = compare(exact, safetensors.torch.load_file(wanted["f32"]), alone)
        row["gradual"] = compare(exact, got, alone)
        if largest_of(row, "f32") > AIMS["f32"]:
            row["spread"] = own_spread(name, file, exact)
    except Exception as e:  # noqa: BLE001: a model that fails is a row of the table
        row["error"] = f"{type(e).__name__}: {e}"
        traceback.print_exc()
    return row


def largest_of(row, part):
    return max(e for e, _ in row[part].values())


def verdict(row):
    if "error" in row:
        return "error"
    if largest_of(row, "f64") > AIMS["f64"]:
        return "differs"
    if largest_of(row, "f32") <= AIMS["f32"]:
        return "equal"
    theirs = max([largest_of(row, who) for who in ("torch", "spread") if who in row] or [0])
    return "rounding" if "gradual" in row and largest_of(row, "gradual") <= AS_EXACT * theirs else "differs in f32"


def table(rows):
    columns = [
        "model",
        "nodes",
        "verdict",
        "f64: outputs",
        "gradients",
        "buffers",
        "f32: outputs",
        "gradients",
        "buffers",
    ]
    columns += ["PyTorch f32", "its spread", "Gradual f32"]
    yield f"| {' | '.join(columns)} |"
    yield "|---|---:|---|" + "---:|" * (len(columns) - 3)
    for row in rows:
        errors = [f"{row[k][part][0]:.0e}" if k in row else "" for k in AIMS for part in ("output", "grad", "buffer")]
        errors += [f"{largest_of(row, who):.1e}" if who in row else "" for who in ("torch", "spread", "gradual")]
        yield f"| {row['model']} | {row.get('nodes', '')} | {verdict(row)} | {' | '.join(errors)} |"


def paragraph(text):
    yield ""
    yield textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def page(rows):
    compared = [r for r in rows if r["model"] not in models_ops.MODELS]
    count = lambda word: sum(verdict(r) == word for r in compared)
    dates = sorted({r["date"] for r in rows})
    yield "# Models of PyTorch, imported"
    yield from paragraph(
        f"""`./dev import-check`, {' and '.join(dates)}, PyTorch {torch.__version__}, one thread, on a machine that
        other programs used. Of {len(compared)} models {count('equal')} are equal, {count('rounding')} differ in f32 as
        rounding does, {count('differs') + count('differs in f32')} differ otherwise, and {count('error')} could not be
        compared."""
    )
    missing = [name for name in MODELS if name not in {r["model"] for r in rows}]
    if missing:
        yield from paragraph(f"Not compared in this run: {', '.join(missing)}.")
    yield from paragraph(
        """Each model has random weights and is exported in training mode, with every dropout at 0. Gradual and PyTorch
        run the exported graph on the same inputs. The numbers are the largest difference, relative to the largest
        magnitude of the tensor (of gradients at least a hundredth of the model's largest). Equal means at most 1e-10 in
        f64 and 1e-4 in f32, for outputs, the gradient of every parameter, and the buffers after the call."""
    )
    yield from paragraph(
        f"""The last columns are distances from PyTorch in f64: of PyTorch in f32, of Gradual in f32, and, for a model
        above 1e-4, PyTorch's own spread, the largest distance of four more runs in f32: without oneDNN, and three in
        which each weight is moved by chance to a neighbouring number of f32. A ReLU or a maximum whose argument changes
        its side makes such a distance large. A model above 1e-4 has the verdict *rounding* if Gradual's distance is at
        most {AS_EXACT} times the larger one of PyTorch's: Gradual is then as far from the exact numbers as
        PyTorch is."""
    )
    yield ""
    yield from table([r for r in rows if r["model"] in models.MODELS])
    yield from paragraph("Models that were not used while the reader was written:")
    yield ""
    yield from table([r for r in rows if r["model"] in models_more.MODELS])
    cases = sum(len(group) for group in models_ops.GROUPS)
    yield from paragraph(
        f"""{cases} ops and options at the points where their definitions meet (bounds, ties, zero), in five models.
        Each gradient is measured by its own size. Some functions jump there, so that f32 and f64 are far apart."""
    )
    yield ""
    yield from table([r for r in rows if r["model"] in models_ops.MODELS])
    failed = [r for r in rows if verdict(r) != "equal"]
    if failed:
        yield ""
        yield "Where they are above the aim:"
        yield ""
        for row in failed:
            places = "; ".join(
                f"{k} {part} {key} {e:.1e}"
                for k in AIMS
                if k in row
                for part, (e, key) in row[k].items()
                if e > AIMS[k]
            )
            yield f"- {row['model']}: " + " ".join((row.get("error") or places).split())[:600]


def sections(folder):
    """What train.py and speed.py wrote."""
    for name in ("training.md", "speed.md"):
        if (folder / name).exists():
            yield ""
            yield (folder / name).read_text().rstrip()


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True, help="gradual-import-check")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--keep", action="store_true", help="rows of other models from an earlier run")
    parser.add_argument("--work", type=pathlib.Path, default=here.parents[1] / "build" / "import-check")
    parser.add_argument("--out", type=pathlib.Path, default=here.parent / "results" / "import.md")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rows = {}
    for name in MODELS if options.keep else ():
        if (options.work / f"{name}.json").exists():
            rows[name] = json.loads((options.work / f"{name}.json").read_text())
    for name in filter(None, options.models.split(",")):
        row = rows[name] = check(name, options.work, options.program)
        (options.work / f"{name}.json").write_text(json.dumps(row))
        print(next(iter(list(table([row]))[2:])), row.get("error", "")[:1500], flush=True)
    options.out.write_text("\n".join([*page([rows[n] for n in MODELS if n in rows]), *sections(options.work)]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
