#!/usr/bin/env python3
"""Plants the kinds of bench/precision that exist in PyTorch into f16 models, and asks PyTorch's anomaly mode and a dry
run in f32 that looks for numbers outside of f16.

    python bench/precision/peers/peers.py [--seed N] [--each N]

Both are asked where the failure is. Neither names a cause or a cure.
"""

import argparse
import contextlib
import inspect
import traceback
import warnings

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

SMALLEST, LARGEST = 2.0**-25, 65504.0  # f16: what rounds to 0, and the largest number
WIDTH, CLASSES, STEPS = 64, 10, 12


# --- what is planted: the functions of flaws.cpp and losses.cpp ---


def exponential_overflow(h, s):
    e = torch.exp(torch.tanh(h) * s)
    return h + e / e.sum(1, keepdim=True)


def square_overflow(h, s):
    x = (h + 0.05) * s
    return x / torch.sqrt((x * x).mean(1, keepdim=True))


def square_underflow(h, s):
    x = (h + 0.05) * s
    return x / torch.sqrt((x * x).mean(1, keepdim=True))


def divisor_underflow(h, s):
    x = (h.abs() + 0.05) * s
    return x / x.amax(1, keepdim=True)


def activation_overflow(h, s):
    x = h * s
    return x * (1 / s)


def product_underflow(h, s):
    gates = torch.sigmoid(h[:, : int(s)])
    product = gates[:, 0]
    for i in range(1, gates.shape[1]):
        product = product * gates[:, i]
    return h + torch.log(product)[:, None] / gates.shape[1]


def root_of_zero(h, s):
    x = (h + 0.05) * s
    return h + torch.sqrt((x * x).sum(1, keepdim=True)) * (0.1 / s)


def mask(h, s):
    x = h.reshape(h.shape[0], 8, -1)
    allowed = torch.ones(8, 8, dtype=x.dtype).tril()
    allowed[7] = 0
    hidden = (1 - allowed) * -s
    weights = torch.softmax(x @ x.transpose(1, 2) / x.shape[2] ** 0.5 + hidden, 2)
    return h + (weights @ x).reshape(h.shape)


def log_of_zero(logits, classes, s):
    p = torch.softmax(logits * s, 1)
    return -torch.log(p.gather(1, classes[:, None])).mean()


def loss_overflow(logits, classes, s):
    d = (logits - nn.functional.one_hot(classes, CLASSES).to(logits.dtype)) * s
    return (d * d).mean()


def faint_loss(logits, classes, s):
    return nn.functional.cross_entropy(logits, classes) * s


# kind: (function, is it the loss, lowest and highest strength, is the place known)
KINDS = {
    "exponential-overflow": (exponential_overflow, False, 16, 60, True),
    "square-overflow": (square_overflow, False, 800, 4000, True),
    "square-underflow": (square_underflow, False, 3e-5, 7e-5, True),
    "divisor-underflow": (divisor_underflow, False, 1e-10, 4e-9, True),
    "activation-overflow": (activation_overflow, False, 2e5, 2e6, True),
    "product-underflow": (product_underflow, False, 30, 60, True),
    "root-of-zero": (root_of_zero, False, 3e-5, 7e-5, True),
    "mask": (mask, False, 7e4, 1e9, True),
    "log-of-zero": (log_of_zero, True, 25, 50, True),
    "loss-overflow": (loss_overflow, True, 400, 3000, True),
    "no-loss-scale": (faint_loss, True, 2e-7, 2e-6, False),
}


class Net(nn.Module):
    def __init__(self, depth, at, flaw, strength):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.at, self.flaw, self.strength = at, flaw, strength

    def forward(self, x):
        for i, block in enumerate(self.blocks):
            x = torch.relu(block(x))
            if self.flaw and i == self.at:
                x = self.flaw(x, self.strength)
        return self.head(x)


class Instance:
    def __init__(self, kind, seed):
        draw = torch.Generator().manual_seed(seed)
        self.function, self.of_loss, low, high, self.placed = KINDS.get(kind, (None, False, 1, 1, False))
        self.strength = low * (high / low) ** torch.rand(1, generator=draw).item()
        self.depth = 2 + seed % 2
        self.at = seed % self.depth
        self.seed = seed
        centres = torch.randn(CLASSES, WIDTH, generator=draw)
        self.classes = torch.randint(CLASSES, (STEPS * 32,), generator=draw)
        self.inputs = centres[self.classes] + 0.5 * torch.randn(STEPS * 32, WIDTH, generator=draw)

    def lines(self):
        source, first = inspect.getsourcelines(self.function)
        return range(first, first + len(source))

    def train(self, dtype, around):
        """Trains with f32 masters. Returns the parameters at the end and the last loss."""
        torch.manual_seed(self.seed)
        net = Net(self.depth, self.at, None if self.of_loss else self.function, self.strength)
        masters = [p.detach().clone() for p in net.parameters()]
        net.to(dtype)
        optimizer = torch.optim.Adam(masters, lr=2e-3, eps=1e-16)
        for step in range(STEPS):
            x, y = (t[32 * step : 32 * step + 32] for t in (self.inputs, self.classes))
            with around():
                logits = net(x.to(dtype))
                if self.of_loss:
                    loss = self.function(logits, y, self.strength)
                else:
                    loss = nn.functional.cross_entropy(logits, y)
                loss.backward()
            for master, p in zip(masters, net.parameters()):
                master.grad = p.grad.float()
            optimizer.step()
            with torch.no_grad():
                for master, p in zip(masters, net.parameters()):
                    p.copy_(master)
                    p.grad = None
        return masters, loss.item()


def hurts(instance):
    """The f16 run is not finite, or half of what f32 changes does not change."""
    exact, _ = instance.train(torch.float32, contextlib.nullcontext)
    half, loss = instance.train(torch.float16, contextlib.nullcontext)
    if not all(t.isfinite().all() for t in half) or loss != loss or loss == float("inf"):
        return True
    gap = sum((a - b).square().sum() for a, b in zip(exact, half))
    torch.manual_seed(instance.seed)
    start = [p.detach() for p in Net(instance.depth, instance.at, None, 1).parameters()]
    return gap > 0.5 * sum((a - b).square().sum() for a, b in zip(exact, start))


def own_line(stack):
    """The innermost line of a stack in this file's planted functions or model."""
    lines = [f.lineno for f in stack if f.filename == __file__]
    return lines[-1] if lines else None


def by_anomaly_mode(instance):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            instance.train(torch.float16, lambda: torch.autograd.detect_anomaly(check_nan=True))
        except RuntimeError:
            text = "".join(str(w.message) for w in caught)
            at = [int(part.split(",")[0]) for part in text.split(f'File "{__file__}", line ')[1:]]
            return True, at[-1] if at else None
    return False, None


class OutsideOfHalf(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.found = None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if self.found is not None or not isinstance(t, torch.Tensor) or not t.is_floating_point() or t.numel() == 0:
                continue
            size = t.detach().abs()
            lost = ((size > 0) & (size < SMALLEST)).sum()
            if size.max() > LARGEST or lost > 0.5 * (size > 0).sum():
                self.found = (True, own_line(traceback.extract_stack()[:-1]))
        return out


def by_dry_run(instance):
    watch = OutsideOfHalf()

    class Around:
        def __enter__(self):
            watch.__enter__()

        def __exit__(self, *error):
            return watch.__exit__(*error)

    instance.train(torch.float32, Around)
    return watch.found or (False, None)


PEERS = {"anomaly mode": by_anomaly_mode, "dry run in f32": by_dry_run}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=4)
    a = parser.parse_args()
    torch.set_num_threads(1)
    score = {peer: dict(reported=0, placed=0, alarms=0) for peer in PEERS}
    rows, failures, placed, healthy = [], 0, 0, 0
    for kind in list(KINDS) + ["healthy"]:
        row = {peer: [0, 0] for peer in PEERS}
        count = 0
        for seed in range(1000 * a.seed, 1000 * a.seed + a.each * (4 if kind == "healthy" else 1)):
            instance = Instance(kind, seed)
            if hurts(instance) == (kind == "healthy"):
                continue
            count += 1
            for peer, ask in PEERS.items():
                reported, line = ask(instance)
                row[peer][0] += reported
                row[peer][1] += bool(instance.placed and line in instance.lines())
        if kind == "healthy":
            healthy = count
        else:
            failures += count
            placed += count * KINDS[kind][4]
        for peer in PEERS:
            score[peer]["alarms" if kind == "healthy" else "reported"] += row[peer][0]
            score[peer]["placed"] += row[peer][1]
        known = kind in KINDS and KINDS[kind][4]
        cells = " | ".join(f"{row[p][0]}, {row[p][1]} at the place" if known else f"{row[p][0]}" for p in PEERS)
        rows.append(f"| {kind} | {count} | {cells} |")
    print(f"PyTorch {torch.__version__}, MLPs in f16, {failures} failures that hurt and {healthy} healthy runs.\n")
    print("| | " + " | ".join(PEERS) + " |\n|---|" + "---|" * len(PEERS))
    print("| failures reported | " + " | ".join(f"{s['reported']} of {failures}" for s in score.values()) + " |")
    print("| at the planted line | " + " | ".join(f"{s['placed']} of {placed}" for s in score.values()) + " |")
    print("| false alarms | " + " | ".join(f"{s['alarms']} of {healthy}" for s in score.values()) + " |")
    print("\n| kind | runs | " + " | ".join(PEERS) + " |\n|---|---|" + "---|" * len(PEERS))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
