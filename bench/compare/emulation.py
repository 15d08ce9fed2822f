#!/usr/bin/env python3
"""A training step under each emulated recipe as a ratio to Gradual's own fp32, and the peers that emulate the same.

One thread. All recipes of a network, with and without counting, and the peers take turns in one run; a time is the
least of all rounds, the median is printed too. `./dev compare --emulation` builds the worker and calls this.
"""

import argparse
import datetime
import os
import statistics
import sys
import time
from contextlib import ExitStack

import machine
from kept import Kept
from measure import Contestant, Framework
from report import table
from workers import WorkerError
from workloads import MODELS

HERE = os.path.dirname(os.path.abspath(__file__))
NETWORKS = {"MLP": "mlp_medium", "CNN": "cnn"}
MEMORY, COUNTING, PEERS = {"MLP": 1.15, "CNN": 1.2}, 1.1, 10  # goals of every row
GROUPS = (  # the recipes of each row of goals, by network
    (("fp8-delayed", "fp8-current", "e4m3"), {"MLP": 1.2, "CNN": 1.4}),
    (("e4m3:stochastic",), {"MLP": 1.6, "CNN": 1.6}),
    (("fp8-rowwise", "fp8-block128", "mxfp8"), {"MLP": 1.4, "CNN": 1.7}),
    (("nvfp4",), {"MLP": 1.8, "CNN": 2.3}),
    (("fp16-acc", "bf16-acc", "e8m3", "fp16-acc/chunk=8", "fp16-acc/chunk=64"), {"MLP": 20, "CNN": 20}),
)
GOALS = {recipe: goals for recipes, goals in GROUPS for recipe in recipes}
ACCUMULATORS = GROUPS[-1][0]
SAME_WORK = {"mxfp8": "microxcaling", "e4m3": "QPyTorch", "e4m3:stochastic": "QPyTorch"}


def say(text):
    print(text, file=sys.stderr, flush=True)


def arguments():
    p = argparse.ArgumentParser(prog="./dev compare --emulation", description=__doc__.split("\n\n")[0],
                                formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--networks", default=",".join(NETWORKS), metavar="LIST")
    p.add_argument("--recipes", default=",".join(GOALS), metavar="LIST")
    p.add_argument("--rounds", type=int, default=25, metavar="N")
    p.add_argument("--round-seconds", type=float, default=0.05, metavar="S", help="of each contestant")
    p.add_argument("--resume", action="store_true", help="go on with the last call that did not end")
    p.add_argument("--out", metavar="FILE", help="the tables in Markdown")
    p.add_argument("--kept", metavar="FILE", help=argparse.SUPPRESS)  # what is measured so far
    p.add_argument("--peers", choices=("all", "pytorch", "none"), default="all")
    p.add_argument("--emulation", action="store_true", help=argparse.SUPPRESS)  # which chose this program
    p.add_argument("--gradual", metavar="PROGRAM", required=True, help=argparse.SUPPRESS)
    p.add_argument("--torch-python", metavar="INTERPRETER", help=argparse.SUPPRESS)
    p.add_argument("--absent", default="pytorch=not asked for (--peers)", metavar="PEER=REASON", help=argparse.SUPPRESS)
    args = p.parse_args()
    for field, known in (("networks", NETWORKS), ("recipes", GOALS)):
        names = getattr(args, field).split(",")
        for name in names:
            if name not in known:
                p.error(f"--{field}: no '{name}'; there are {', '.join(known)}")
        setattr(args, field, names)
    if args.rounds < 1:
        p.error(f"--rounds is at least 1, not {args.rounds}")
    return args


def request(network, recipe, count=False):
    spec = {k: v for k, v in MODELS[NETWORKS[network]].items() if k != "goal"}
    if recipe in ACCUMULATORS:
        recipe = {"name": "sums", "quantization": {"accumulator": recipe}}
    return {"do": "model", **spec, "precision": "f32", "recipe": recipe, "count": count}


def contestants_of(network, args):
    """(framework, recipe, counts) of all who take turns; the first is Gradual's fp32."""
    gradual = Framework("Gradual", [args.gradual])
    wanted = [(gradual, "fp32", False)]
    for recipe in args.recipes:
        wanted += [(gradual, recipe, False)] + [(gradual, recipe, True)] * (recipe not in ACCUMULATORS)
    if args.torch_python:
        torch = Framework("PyTorch", [args.torch_python, os.path.join(HERE, "emulated_torch.py")])
        wanted += [(torch, recipe, False) for recipe in ("fp32", *SAME_WORK) if recipe in ("fp32", *args.recipes)]
    return wanted


def start(network, args, absent, problems, stack):
    """Contestants by (framework, recipe, counts). Why one does not start is a problem or, of a peer, in `absent`."""
    wanted, found = contestants_of(network, args), {}
    for number, (framework, recipe, count) in enumerate(wanted, 1):
        say(f"{network}: {framework.name} {recipe}{' with counting' * count} starts ({number}/{len(wanted)})")
        key = framework.name, recipe, count
        try:
            worker = stack.enter_context(framework.start(1))
            found[key] = Contestant(key, worker, request(network, recipe, count), args.round_seconds, "cpu")
        except WorkerError as problem:
            if framework.name != "Gradual":
                peer = SAME_WORK.get(recipe, "PyTorch")
                absent[peer] = str(problem)
                say(f"{peer} is not compared: {absent[peer]}")
            elif recipe == "fp32":
                sys.exit(f"compare: {recipe}: {problem}")
            else:
                problems.append(f"{network}: {recipe}: {problem}")
    return found


def measure(network, args, absent, problems, kept):
    """Contestants by (framework, recipe, counts), after all rounds. Those whose worker died are left out."""
    with ExitStack() as stack:
        found = start(network, args, absent, problems, stack)
        earlier = kept.get(network) or {}
        names = {key: " ".join(map(str, key)) for key in found}
        if all(name in earlier for name in names.values()):  # ratios are of rounds in which all took turns
            for key, contestant in found.items():
                contestant.times = list(earlier[names[key]])
        contestants = list(found.values())
        spoken = time.monotonic()
        for r in range(len(contestants[0].times), args.rounds):
            shift = r % len(contestants)  # nobody always runs after the same one
            for contestant in contestants[shift:] + contestants[:shift]:
                contestant.turn()
            kept.put(network, {names[key]: c.times for key, c in found.items() if not c.died})
            if time.monotonic() - spoken > 10 or r + 1 == args.rounds:
                say(f"{network}: round {r + 1} of {args.rounds}")
                spoken = time.monotonic()
        for contestant in contestants:
            try:
                if not contestant.died:
                    contestant.memory = contestant.worker.ask("memory")["allocator"]
            except WorkerError as problem:
                contestant.died = str(problem)
    for (framework, recipe, count), contestant in found.items():
        if contestant.died:
            problems.append(f"{network}: {framework} {recipe}{' with counting' * count}: {contestant.died}")
    return {key: contestant for key, contestant in found.items() if not contestant.died}


def cell(value, goal):
    return f"{value:.2f} ({goal:g}: {'met' if value <= goal else 'missed'})"


def rows(network, found, recipes):
    """A row for each recipe; a dash where a worker died."""
    own = found.get(("Gradual", "fp32", False))
    if own is None:
        return [[network, recipe, "-", "-", "-", "-", "-"] for recipe in ("fp32", *recipes)]
    lines = [[network, "fp32", f"{min(own.times) * 1e3:.2f}", "", "", "", f"{own.memory / 2**20:.1f} MiB"]]
    for recipe in recipes:
        one, counting = found.get(("Gradual", recipe, False)), found.get(("Gradual", recipe, True))
        if one is None:
            lines.append([network, recipe, "-", "-", "-", "-", "-"])
            continue
        counted = "nothing to count" if recipe in ACCUMULATORS else "-"
        lines.append([network, recipe, f"{min(one.times) * 1e3:.2f}",
                      cell(min(one.times) / min(own.times), GOALS[recipe][network]),
                      f"{statistics.median(b / a for a, b in zip(own.times, one.times)):.2f}",
                      cell(min(counting.times) / min(one.times), COUNTING) if counting else counted,
                      cell(one.memory / own.memory, MEMORY[network])])
    return lines


def peer_rows(network, found):
    lines = []
    for (framework, recipe, _), peer in found.items():
        if framework == "Gradual":
            continue
        same = found.get(("Gradual", recipe, False))
        ours, times = "-", "-"
        if same is not None:
            ours = f"{min(same.times) * 1e3:.2f}"
            ratio = min(peer.times) / min(same.times)
            times = f"{ratio:.1f}"
            if recipe in SAME_WORK:
                times += f" ({PEERS}: {'met' if ratio >= PEERS else 'missed'})"
        lines.append([network, recipe, ours, SAME_WORK.get(recipe, framework), f"{min(peer.times) * 1e3:.2f}", times])
    return lines


def markdown(args, own, peers, absent, problems, meanwhile):
    at = machine.describe()
    text = f"# The speed of emulation, {datetime.date.today().isoformat()}\n\n"
    text += f"Commit {machine.commit(HERE)}. {at['cpu']} ({at['family']}; {', '.join(at['extensions'])}), one thread.\n"
    text += f"{args.rounds} rounds of {args.round_seconds:g} s each (at least one step), in turn; processor time.\n"
    if meanwhile:
        text += f"Meanwhile other programs took {meanwhile['others']:.0%} of the processors' time.\n"
    text += "\n## A training step relative to Gradual's own fp32\n\n"
    text += table(["network", "recipe", "ms", "ratio", "median", "counting", "peak memory"], own)
    text += "\n`ms` and `ratio` are of the least times, `median` of the ratios of all rounds. `counting` is the step "
    text += "with\nall casts counted relative to the step without. In brackets: the goal.\n"
    if peers:
        text += "\n## Peers that emulate the same\n\n"
        text += table(["network", "recipe", "Gradual, ms", "peer", "ms", "times as long"], peers)
    for peer, reason in absent.items():
        text += f"\n{peer} is not compared: {reason}\n"
    if problems:
        text += "\n## Problems\n\n" + "".join(f"- {p}\n" for p in problems)
    return text


def main():
    args = arguments()
    absent = {} if args.torch_python else dict([args.absent.split("=", 1)])
    about = {"commit": machine.commit(HERE), "machine": machine.describe(),
             "settings": {"recipes": args.recipes, "seconds of a round": args.round_seconds}}
    kept = Kept(args.kept, about, args.resume)
    meanwhile, own, peers, problems = machine.Meanwhile(), [], [], []
    for network in args.networks:
        found = measure(network, args, absent, problems, kept)
        own += rows(network, found, args.recipes)
        peers += peer_rows(network, found)
        say(table(["network", "recipe", "ms", "ratio", "median", "counting", "peak memory"], own))
    text = markdown(args, own, peers, absent, problems, meanwhile.shares())
    print(text, end="")
    if args.out:
        with open(args.out, "w") as file:
            file.write(text)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
