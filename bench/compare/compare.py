#!/usr/bin/env python3
"""Gradual against PyTorch and libtorch: the same models, data, threads and precisions, run in turn in one call.

`./dev compare` builds the workers and calls this. Medians and quartiles of rounds; a ratio is taken within each round
and says how many times faster Gradual is than the peer.
"""

import argparse
import datetime
import json
import math
import os
import sys
from contextlib import ExitStack

import machine
import report
from kept import Kept
from measure import Contestant, Framework, fastest_variant, ratios, summary, take_turns
from workers import WorkerError
from workloads import DEFAULT_PRECISIONS, GPU_MODELS, GPU_OPS, MODELS, OPS, OWN_KERNELS, PRECISION_GOALS, PRECISIONS

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = "Gradual"
COMPILED = "torch.compile"
OWN = "own kernels"  # Gradual without the GPU's libraries
PARTS = ("models", "precision_gains", "ops", "problems")  # of what is found, by model or op
WORKLOADS = {"cpu": (MODELS, OPS), "cuda": (GPU_MODELS, GPU_OPS)}


def say(text):
    print(text, file=sys.stderr, flush=True)


def chosen(text, known, what):
    if text == "all":
        return list(known)
    names = [] if text == "none" else text.split(",")
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"no {what} '{name}'; there are {', '.join(known)}, all and none")
    return names


def thread_counts(text):
    cores = len(os.sched_getaffinity(0))
    counts = []
    for word in text.split(","):
        if word != "all" and not (word.isdigit() and int(word) >= 1):
            raise argparse.ArgumentTypeError(f"'{word}' is no number of threads; allowed are 1, 2, .. and all")
        count = cores if word == "all" else int(word)
        if count not in counts:
            counts.append(count)
    return counts


def at_least_1(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def arguments():
    p = argparse.ArgumentParser(prog="./dev compare", description=__doc__.split("\n\n")[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--device", choices=WORKLOADS, default="cpu",
                   help="cuda: larger models and ops, against PyTorch alone")
    p.add_argument("--models", metavar="LIST",
                   help=f"of {', '.join(MODELS)} (cuda: {', '.join(GPU_MODELS)}); all, unless --ops is given")
    p.add_argument("--ops", nargs="?", const="all", metavar="LIST",
                   help=f"single ops, of {', '.join(OPS)} (cuda: {', '.join(GPU_OPS)}); all, unless --models is given")
    p.add_argument("--precisions", metavar="LIST",
                   help=f"of {', '.join(PRECISIONS)}; default on cpu: {','.join(DEFAULT_PRECISIONS['cpu'])}, "
                        "on cuda: all")
    p.add_argument("--threads", type=thread_counts, default="1,all", metavar="LIST")
    p.add_argument("--rounds", type=at_least_1, default=9, metavar="N")
    p.add_argument("--round-seconds", type=float, default=0.3, metavar="S", help="of each contestant in each round")
    p.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                   help="cpu: with one thread, the processor time of the worker, for a machine that others use too")
    p.add_argument("--peers", type=lambda t: chosen(t, ("pytorch", "libtorch"), "peer"), default="all", metavar="LIST")
    p.add_argument("--backend", choices=("eigen", "onednn"), help="Gradual's, in place of its default")
    p.add_argument("--same-environment", action="store_true",
                   help="leave GOMP_SPINCOUNT to the peers too; by default they have OpenMP's own settings")
    p.add_argument("--resume", action="store_true",
                   help="go on with the last call that did not end; what lacks a contestant is measured again")
    p.add_argument("--out", metavar="FILE", help="the tables in Markdown")
    p.add_argument("--json", metavar="FILE", help="every number")
    # what ./dev compare passes
    p.add_argument("--kept", metavar="FILE", help=argparse.SUPPRESS)  # what is measured so far
    p.add_argument("--gradual", metavar="PROGRAM", required=True, help=argparse.SUPPRESS)
    p.add_argument("--libtorch", metavar="PROGRAM", help=argparse.SUPPRESS)
    p.add_argument("--torch-python", metavar="INTERPRETER", help=argparse.SUPPRESS)
    p.add_argument("--absent", action="append", default=[], metavar="PEER=REASON",
                   help=argparse.SUPPRESS)  # why a peer is not there
    args = p.parse_args()
    if args.models is None and args.ops is None:
        args.models = args.ops = "all"
    args.workloads = dict(zip(("models", "ops"), WORKLOADS[args.device]))
    try:
        args.models = chosen(args.models or "none", args.workloads["models"], "model")
        args.ops = chosen(args.ops or "none", args.workloads["ops"], "op")
        args.precisions = chosen(args.precisions or ",".join(DEFAULT_PRECISIONS[args.device]), PRECISIONS, "precision")
    except argparse.ArgumentTypeError as problem:
        p.error(str(problem))
    if args.device == "cuda":  # the host's threads have nothing to compute; libtorch of the system has no CUDA
        args.threads, args.peers = [1], [peer for peer in args.peers if peer != "libtorch"]
    args.clocks = {threads: "cpu" if args.clock == "cpu" and threads == 1 else "seconds" for threads in args.threads}
    return args


def find_frameworks(args, found):
    """Those that start, Gradual first; fills found["frameworks"] and, with reasons, found["absent"]."""
    reasons = dict(a.split("=", 1) for a in args.absent)
    plain = {} if args.same_environment else {"GOMP_SPINCOUNT": None, "OMP_WAIT_POLICY": None}
    python = args.torch_python and [args.torch_python, os.path.join(HERE, "torch_worker.py")]
    known = {"pytorch": ("PyTorch", python), "libtorch": ("libtorch", args.libtorch and [args.libtorch])}
    backend = ["--backend", args.backend] if args.backend else []
    frameworks = [Framework(OURS, [args.gradual, *backend], device=args.device)]
    for peer, (name, command) in known.items():
        if peer not in args.peers:
            found["absent"][name] = "not asked for (--peers)"
        elif not command:
            found["absent"][name] = reasons.get(peer, "no program was given for it")
        else:
            frameworks.append(Framework(name, command, plain, args.device))
    started = []
    for framework in frameworks:
        try:
            with framework.start(1) as worker:
                found["frameworks"][framework.name] = worker.hello
            started.append(framework)
        except WorkerError as problem:
            if framework.name == OURS:
                sys.exit(f"compare: {problem}")
            found["absent"][framework.name] = str(problem)
    for name, reason in found["absent"].items():
        say(f"{name} is not compared: {reason}")
    return started


def results_of(contestants, row, problems, what):
    """Results by name; those whose worker died are left out, and a problem says why."""
    results = {name: c.result() for name, c in contestants.items()}
    for name, contestant in contestants.items():
        if contestant.died:
            row["failed"][name] = contestant.died
            problems.append(f"{what}: {name}: {contestant.died}")
    return {name: result for name, result in results.items() if result is not None}


def against_peers(row, contestants):
    """Adds the ratios of a row, and the better peer."""
    ours = contestants[OURS].times
    peers = {name: c for name, c in contestants.items() if name not in (OURS, COMPILED, OWN)}
    row["ratios"] = {name: ratios(c.times, ours) for name, c in peers.items()}
    if COMPILED in contestants:
        row["compiled"] = {**ratios(contestants[COMPILED].times, ours), "goal": row.get("compiled_goal")}
    if row["ratios"]:
        row["better_peer"] = min(row["ratios"], key=lambda name: row["ratios"][name]["median"])
        row["ratio"] = row["ratios"][row["better_peer"]]["median"]


def check_training(name, row, problems):
    """The contestants must have trained the same model on the same data, and learned."""
    ours = row["results"].get(OURS)
    for framework, result in row["results"].items():
        first, last = result["loss"]
        if first is None or last is None or not last < first:
            problems.append(f"{name}: {framework}'s loss went from {first} to {last}")
        if ours and result["parameters"] != ours["parameters"]:
            problems.append(f"{name}: {framework} has {result['parameters']} parameters, {OURS} {ours['parameters']}")
        if ours and not math.isclose(result["data"], ours["data"], rel_tol=1e-6, abs_tol=1e-6):
            problems.append(f"{name}: {framework}'s data sum to {result['data']}, {OURS}'s to {ours['data']}")


def compare_model(model, threads, args, frameworks, found):
    """All precisions and frameworks of one model take turns: f32 and bf16 can be compared too."""
    rows, contestants = [], {}
    with ExitStack() as stack:
        for precision in args.precisions:
            spec = {**args.workloads["models"][model], "precision": precision}
            row = {"model": model, "precision": precision, "threads": threads, "goal": spec.pop("goal").get(precision),
                   "compiled_goal": spec.pop("compiled", {}).get(precision), "results": {}, "failed": {}}
            rows.append(row)

            def join(name, framework, variant):
                try:
                    if variant is None:
                        variant = fastest_variant(framework, spec, threads, args.round_seconds / 2)
                    worker = stack.enter_context(framework.start(threads))
                    request = {"do": "model", **spec, "variant": variant}
                    contestant = Contestant(name, worker, request, args.round_seconds, args.clocks[threads])
                    contestant.facts["variant"] = variant
                    contestants[precision, name] = contestant
                    return variant
                except WorkerError as problem:
                    row["failed"][name] = str(problem)
                    found["problems"].append(f"{model} {precision}: {name}: {problem}")
                    return []

            for framework in frameworks:
                variant = join(framework.name, framework, None)
                if "compile" in found["frameworks"][framework.name]["variants"] and args.device == "cuda":
                    join(COMPILED, framework, [*variant, "compile"])
        if not contestants:
            return
        take_turns(list(contestants.values()), args.rounds)
        for row in rows:
            mine = {name: c for (precision, name), c in contestants.items() if precision == row["precision"]}
            what = f"{model} {row['precision']}, {threads} thread{'s' * (threads > 1)}"
            row["results"] = results_of(mine, row, found["problems"], what)
            check_training(what, row, found["problems"])
            if OURS in row["results"]:
                against_peers(row, {name: mine[name] for name in row["results"]})
            found["models"].append(row)
            say(report.model_line(row))
    both = [contestants.get((p, OURS)) for p in ("f32", "bf16")]
    if all(c and not c.died for c in both):
        found["precision_gains"].append({"model": model, "threads": threads, "goal": PRECISION_GOALS.get(model),
                                         **ratios(both[0].times, both[1].times)})


def compare_op(op, threads, args, frameworks, found):
    spec = dict(args.workloads["ops"][op])
    work, peak, goal = spec.pop("work"), spec.pop("peak", None), spec.pop("goal", None)
    moves_bytes = spec["op"] in ("cast", "softmax", "layer_norm", "adamw", "batch_norm", "avg_pool2d")
    row = {"op": op, "threads": threads, "peak": peak, "goal": goal, "work": work, "results": {}, "failed": {},
           "ratio_goal": spec.pop("ratio", None), "bytes": moves_bytes}
    contestants = {}
    with ExitStack() as stack:
        def join(name, framework, request):
            try:
                worker = stack.enter_context(framework.start(threads))
                contestants[name] = Contestant(name, worker, request, args.round_seconds, args.clocks[threads])
            except WorkerError as problem:
                row["failed"][name] = str(problem)
                if name != "peak":
                    found["problems"].append(f"{op}: {name}: {problem}")
        if peak:
            join("peak", frameworks[0], {"do": "op", "op": "peak", "of": peak})
        for framework in frameworks:
            join(framework.name, framework, {"do": "op", **spec})
        if args.device == "cuda" and spec["op"] in OWN_KERNELS:
            join(OWN, Framework(OWN, [args.gradual, "--backend", "ours"], device=args.device), {"do": "op", **spec})
        if not contestants:
            return
        take_turns(list(contestants.values()), args.rounds)
        top = contestants.pop("peak", None)
        if top and top.died:
            top = None
        alive = results_of(contestants, row, found["problems"], f"{op}, {threads} thread{'s' * (threads > 1)}")
        contestants = {name: c for name, c in contestants.items() if name in alive}
        for name, c in contestants.items():
            row["results"][name] = {"seconds": {**summary(c.times), "rounds": c.times},
                                    "rate": summary([work / t for t in c.times])}
            if top:
                rates = [top.facts["work"] / t for t in top.times]
                row["results"][name]["share"] = summary([work / t / rate for t, rate in zip(c.times, rates)])
        if top:
            row["peak_rate"] = {**summary([top.facts["work"] / t for t in top.times]), "how": top.facts["how"]}
        if OURS in contestants:
            against_peers(row, contestants)
    found["ops"].append(row)
    say(report.op_line(row))


def main():
    args = arguments()
    found = {"date": datetime.date.today().isoformat(), "commit": machine.commit(HERE), "machine": machine.describe(),
             "settings": {"device": args.device, "rounds": args.rounds, "round_seconds": args.round_seconds,
                          "clock": args.clock, "same_environment": args.same_environment,
                          "environment": {k: v for k, v in os.environ.items() if k.startswith(("OMP_", "GOMP_"))}},
             "frameworks": {}, "absent": {}, "models": [], "precision_gains": [], "ops": [], "problems": []}
    frameworks = find_frameworks(args, found)
    kept = Kept(args.kept, {name: found[name] for name in ("commit", "machine", "settings", "frameworks")}, args.resume)
    meanwhile = machine.Meanwhile()
    jobs = [(compare_model, model, threads) for model in args.models for threads in args.threads]
    jobs += [(compare_op, op, threads) for op in args.ops for threads in args.threads]
    for number, (measure, name, threads) in enumerate(jobs, 1):
        key = f"{measure.__name__} {name} {threads}"
        part = kept.get(key)
        if part is None or part["problems"]:
            say(f"[{number}/{len(jobs)}] {name}, {threads} thread{'s' * (threads > 1)}")
            part = {**{field: [] for field in PARTS}, "frameworks": found["frameworks"]}
            measure(name, threads, args, frameworks, part)
            part = {field: part[field] for field in PARTS}
            kept.put(key, part)
        for field in PARTS:
            found[field] += part[field]
    found["meanwhile"] = meanwhile.shares()

    text = report.markdown(found)
    print(text, end="")
    if args.out:
        with open(args.out, "w") as file:
            file.write(text)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
