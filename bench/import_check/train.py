#!/usr/bin/env python3
"""Trains ResNet-18 and a GPT-2 with PyTorch and Gradual on the same numbers, for a section of import.md.

python train.py --program build/release/bench/gradual-import-check --work build/import-check [--steps 200]
"""

import subprocess

import safetensors.torch
import torch
from torch import nn
from torch.nn import functional

import models
import reference
from options import options_of


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images, labels):
        return functional.cross_entropy(self.net(images), labels)


def resnet18(steps, batch=8):
    import torchvision

    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    chosen = torch.randint(0, 64, (steps, batch))
    return (
        WithLoss(torchvision.models.resnet18(weights=None, num_classes=10)),
        {"images": images[chosen], "labels": labels[chosen]},
        0.02,
    )


def gpt2(steps, batch=8, length=24):
    import transformers

    config = transformers.GPT2Config(
        n_embd=64,
        n_layer=4,
        n_head=4,
        vocab_size=100,
        n_positions=32,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    text = torch.randint(0, 100, (400,)).repeat(3)
    starts = torch.randint(0, 800, (steps, batch))
    tokens = torch.stack([torch.stack([text[s : s + length] for s in row]) for row in starts.tolist()])
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}, 0.5


def in_pytorch(file, data, lr, double=False, moved=None):
    module = torch.export.load(file).module(check_guards=False)
    if moved is not None:
        reference._moved(module, moved)
    default = torch.get_default_dtype()
    if double:
        module = reference._as_double(module)
        torch.set_default_dtype(torch.float64)
        data = {k: t.double() if t.is_floating_point() else t for k, t in data.items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    losses = []
    for i in range(len(next(iter(data.values())))):
        optimizer.zero_grad()
        loss = reference.tensors_in(module(**{k: t[i] for k, t in data.items()}))[0]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.set_default_dtype(default)
    return torch.tensor(losses, dtype=torch.float64)


def train(name, make, program, folder, steps):
    torch.manual_seed(0)
    model, data, lr = make(steps)
    models.without_randomness(model.train())
    file, given, out = (folder / f"train_{name}.{ending}" for ending in ("pt2", "safetensors", "out"))
    first = {k: t[0] for k, t in data.items()}
    torch.export.save(torch.export.export(model, (), first), file)
    safetensors.torch.save_file({f"input.{k}": t.contiguous().clone() for k, t in data.items()}, given)
    subprocess.run([program, "train", file, given, out, str(lr)], check=True, stdout=subprocess.DEVNULL)
    runs = {"Gradual": safetensors.torch.load_file(out)["losses"], "PyTorch": in_pytorch(file, data, lr)}
    with torch.backends.mkldnn.flags(enabled=False):
        runs["without oneDNN"] = in_pytorch(file, data, lr)
    for seed in (1, 2):
        runs[f"weights moved, {seed}"] = in_pytorch(file, data, lr, moved=seed)
    runs["in f64"] = in_pytorch(file, data, lr, double=True)
    return lr, runs


def rows(name, lr, runs):
    base = runs["PyTorch"]
    others = [k for k in runs if k != "PyTorch"]
    apart = {k: (runs[k] - base).abs() for k in others}
    own = torch.stack([apart[k] for k in others if k != "Gradual"]).amax(0)
    over = (own > 1e-4).nonzero()
    chaos = over[0].item() + 1 if len(over) else None
    steps = [n for n in (1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200) if n <= len(base)]
    yield f"{name}, learning rate {lr}:"
    yield ""
    yield "| step | loss of PyTorch | " + " | ".join(others) + " |"
    yield "|---:|---:|" + "---:|" * len(others)
    for n in steps:
        yield f"| {n} | {base[n - 1]:.6f} | " + " | ".join(f"{apart[k][n - 1]:.1e}" for k in others) + " |"
    yield ""
    before = apart["Gradual"][: (chaos or len(base) + 1) - 1]
    start = (
        f"PyTorch's own runs are more than 1e-4 apart from step {chaos} on"
        if chaos
        else "PyTorch's own runs stay within 1e-4 of each other"
    )
    text = f"{start}. Before that Gradual's loss differs by at most {before.max().item() if len(before) else 0:.1e}."
    if chaos:
        after, spread = apart["Gradual"][chaos - 1 :], own[chaos - 1 :]
        text += (
            f" From then on its mean difference is {after.mean():.1e}, that of PyTorch's farthest run"
            f" {spread.mean():.1e};"
            f" the largest ones are {after.max():.1e} and {spread.max():.1e}."
        )
    yield text
    yield ""


def main():
    options = options_of(__doc__, steps=200)
    lines = [
        "## Trainings",
        "",
        f"`python bench/import_check/train.py --program .. --work ..`: {options.steps} steps of SGD in f32. The",
        "columns are the absolute differences of the loss from PyTorch's: Gradual's, and those of PyTorch without "
        "oneDNN, with",
        "each weight moved by chance to a neighbouring number of f32 at the start, and in f64.",
        "",
    ]
    for name, make in {
        "ResNet-18 (torchvision, 32x32 images)": resnet18,
        "GPT-2 (transformers, 4 layers of width 64)": gpt2,
    }.items():
        lines += rows(name, *train(make.__name__, make, options.program, options.work, options.steps))
        print("\n".join(lines), flush=True)
    (options.work / "training.md").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
