#!/usr/bin/env python3
"""Times a training step of imported models and of the same models in PyTorch's eager mode, in turn on one thread, and
of two models also as written in C++, and loads a GPT-2 of 124 million weights. Writes speed.md for import_check.py.

    python speed.py --program build/release/bench/gradual-import-check --work build/import-check [--rounds 5]
"""

import os
import subprocess
import time

import safetensors.torch
import torch

import models
import train
import twins
from options import options_of


def _images(name, size, batch=8):
    def make(steps):
        import torchvision

        model = getattr(torchvision.models, name)(weights=None, num_classes=10)
        return train.WithLoss(model), {
            "images": torch.randn(steps, batch, 3, size, size),
            "labels": torch.randint(0, 10, (steps, batch)),
        }

    return make


def _gpt2(batch, length, **options):
    def make(steps):
        import transformers

        config = transformers.GPT2Config(use_cache=False, **options)
        tokens = torch.randint(0, config.vocab_size, (steps, batch, length))
        return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}

    return make


def _bert(steps, batch=8, length=64):
    import transformers

    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, vocab_size=1000
    )
    tokens = torch.randint(0, 1000, (steps, batch, length))
    return transformers.BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens}


def _transformer_of_images(steps, batch=8, size=32):
    import torchvision

    model = torchvision.models.VisionTransformer(
        image_size=size, patch_size=4, num_layers=4, num_heads=4, hidden_dim=128, mlp_dim=512, num_classes=10
    )
    return train.WithLoss(model), {
        "images": torch.randn(steps, batch, 3, size, size),
        "labels": torch.randint(0, 10, (steps, batch)),
    }


MODELS = {
    "ResNet-18, 8 images of 32x32": _images("resnet18", 32),
    "ResNet-18, 8 images of 64x64": _images("resnet18", 64),
    "MobileNetV2, 8 images of 64x64": _images("mobilenet_v2", 64),
    "GPT-2, 4 layers of width 128, 8 x 64 tokens": _gpt2(
        8, 64, n_embd=128, n_layer=4, n_head=4, vocab_size=1000, n_positions=64, bos_token_id=None, eos_token_id=None
    ),
    "BERT, 4 layers of width 128, 8 x 64 tokens": _bert,
    "Vision transformer, 4 layers of width 128, 8 images of 32x32": _transformer_of_images,
}
STEPS = 6  # of a round; the best one counts


def written(make, steps, folder, name):
    torch.manual_seed(0)
    model, data = make(steps)
    models.without_randomness(model.train())
    file, given, out = (folder / f"speed_{name}.{ending}" for ending in ("pt2", "safetensors", "out"))
    torch.export.save(torch.export.export(model, (), {k: t[0] for k, t in data.items()}), file)
    safetensors.torch.save_file({f"input.{k}": t.contiguous().clone() for k, t in data.items()}, given)
    return model, data, file, given, out


def in_gradual(program, file, given, out, lr="1e-4"):
    run = subprocess.run(
        [program, "train", file, given, out, lr],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return safetensors.torch.load_file(out)["seconds"].min().item(), [float(x) for x in run.stdout.split()]


def in_pytorch(model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    best = float("inf")
    for i in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        out = model(**{k: t[i] for k, t in data.items()})
        loss = out if isinstance(out, torch.Tensor) else out.loss
        loss.backward()
        optimizer.step()
        loss.item()
        best = min(best, time.perf_counter() - start)
    return best


RACE_STEPS = 40


def race(program, name, make, folder):
    """The medians of a step, imported and written in C++, in ms, the ratio's median, and how far the losses differ."""
    _, _, file, given, out = written(make, RACE_STEPS, folder, f"race_{name}")
    run = subprocess.run(
        [program, "race", file, given, out, name],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    times = safetensors.torch.load_file(out)
    imported, own = times["imported"][5:] * 1e3, times["written"][5:] * 1e3
    return imported.min().item(), own.min().item(), (imported / own).median().item(), float(run.stdout)


def races(program, folder, rounds):
    yield ""
    yield "The same model written in C++ (twins.h) takes a step in turn with the imported one, in one process and from"
    yield f"the same weights: {rounds} runs of {RACE_STEPS} steps. The ratio is the median of those of neighbouring"
    yield "steps."
    yield ""
    yield "| model | in C++, ms | imported, ms | ratio of a step | losses differ by |"
    yield "|---|---:|---:|---:|---:|"
    for name, make in {"resnet": twins.resnet, "gpt": twins.gpt}.items():
        runs = [race(program, name, make, folder) for _ in range(rounds)]
        imported, own = min(r[0] for r in runs), min(r[1] for r in runs)
        ratio = sorted(r[2] for r in runs)[len(runs) // 2]
        yield f"| {name} | {own:.1f} | {imported:.1f} | {ratio:.3f} | {max(r[3] for r in runs):.1g} |"


def memory(program, folder):
    model, _, file, given, out = written(_gpt2(1, 32, bos_token_id=None, eos_token_id=None), 1, folder, "gpt2_small")
    weights = sum(p.numel() for p in model.parameters()) * 4 / 2**20
    count = sum(p.numel() for p in model.parameters()) / 1e6
    _, (seconds, loaded, total) = in_gradual(program, file, given, out)
    return (
        f"GPT-2 small ({count:.0f} million weights, {weights:.0f} MiB) is loaded in {seconds:.2f} s "
        f"and {loaded:.0f} MiB, "
        f"{loaded / weights:.2f} times its weights. A step of 32 tokens with SGD takes {total:.0f} MiB in all, with "
        f"gradients and the program's own data."
    )


def main():
    options = options_of(__doc__, rounds=5)
    lines = [
        "## Speed and memory",
        "",
        "`python bench/import_check/speed.py --program .. --work ..`: a step (forward, backward, SGD) in f32 on one",
        f"thread, the best of {options.rounds} rounds of {STEPS} steps in turn, on a machine that other programs used.",
        "",
        "| model | PyTorch eager, ms | imported, ms | ratio |",
        "|---|---:|---:|---:|",
    ]
    for i, (name, make) in enumerate(MODELS.items()):
        model, data, file, given, out = written(make, STEPS, options.work, i)
        times = [
            (in_pytorch(model, data), in_gradual(options.program, file, given, out)[0]) for _ in range(options.rounds)
        ]
        theirs, ours = (min(t) for t in zip(*times))
        lines.append(f"| {name} | {theirs * 1e3:.1f} | {ours * 1e3:.1f} | {ours / theirs:.2f} |")
        print(lines[-1], flush=True)
    lines += races(options.program, options.work, options.rounds)
    lines += ["", memory(options.program, options.work)]
    print(lines[-1])
    (options.work / "speed.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
