#!/usr/bin/env python3
"""Exports tiny models with PyTorch and writes what PyTorch computes for them in f64.

    pip install torch safetensors && python tests/golden/pt2/make.py

NAME.pt2 is torch.export.save's file without the pickle of sample inputs; of stack traces only the lines of this script
are kept, and of the values' descriptions those of the inputs, so that the files are small. NAME.safetensors has the
inputs and cotangents (f32), and outputs, loss, gradients and buffers after the call (f64, from the same f32 weights).
step.NAME.DTYPE.safetensors are steps as bench/judge/record.py records them, bf16 and f16 under autocast.
"""

import contextlib
import copy
import json
import pathlib
import re
import sys
import zipfile

import safetensors.torch
import torch
import torch.nn as nn
import torch.nn.functional as F

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parents[2] / "bench" / "import_check"))
sys.path.insert(0, str(here.parents[2] / "bench" / "judge"))
import record  # noqa: E402
import reference  # noqa: E402


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 8)
        self.fc2 = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.0)
        self.fc = nn.Linear(16, 3)
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0]), persistent=False)

    def forward(self, x):
        return self.fc(self.drop(self.c(x).flatten(1))) * self.scale


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)
        self.b = nn.Conv2d(3, 6, 1)
        self.gn = nn.GroupNorm(2, 6)
        self.se = nn.Linear(6, 6)
        self.short = nn.Conv2d(3, 6, 3, stride=2, padding=2)

    def forward(self, x):
        y = F.hardswish(self.gn(self.b(self.a(x))))
        y = F.avg_pool2d(y, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)
        y = y * F.hardsigmoid(self.se(y.mean((2, 3))))[:, :, None, None]
        y += self.short(x)
        return F.adaptive_avg_pool2d(F.leaky_relu_(y, 0.1), 1).flatten(1)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5, padding_idx=0)
        self.norm = nn.LayerNorm(5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    def forward(self, x, mask):
        b, t, e = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, e // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out((y + z).transpose(1, 2).reshape(b, t, e))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.attn(self.ln1(x)).split(c, dim=2)
        q, k, v = (p.view(b, t, 2, c // 2).transpose(1, 2) for p in (q, k, v))
        s = q @ k.transpose(-2, -1) * (c // 2) ** -0.5
        s = s.masked_fill(torch.ones(t, t, dtype=torch.bool).tril().logical_not(), float("-inf"))
        x = x + self.proj((s.softmax(-1) @ v).transpose(1, 2).contiguous().view(b, t, c))
        return x + self.fc2(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.wte = nn.Embedding(11, width)
        self.wpe = nn.Embedding(8, width)
        self.h = nn.ModuleList(Block(width) for _ in range(2))
        self.ln = nn.LayerNorm(width)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln(x), self.wte.weight)
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, 11), labels[:, 1:].reshape(-1))
        return loss, logits


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.cell = nn.GRUCell(8, 5)

    def forward(self, x):
        y, _ = self.lstm(x)
        h = torch.zeros(x.shape[0], 5)
        for t in range(y.shape[1]):
            h = self.cell(y[:, t], h)
        return h


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.calls += 1
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        y = self.fc(x)
        left = y[:, 1:4]
        turned = y.t()
        left *= 2  # seen in y and in turned
        turned[0].add_(1)
        y.clamp_(min=-1.5)
        z = torch.zeros(x.shape[0], 6)
        z[:, ::2] = left
        z[x[:, 0] > 0] = 0.25
        return left.sigmoid_().sum(1), turned.exp(), z.cumsum(1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        d = F.silu(self.down(x))
        m = F.instance_norm(self.mid(d))
        a = F.interpolate(m, scale_factor=2, mode="bilinear", align_corners=False)
        b = F.interpolate(m[:, :2], size=x.shape[2:], mode="nearest")
        return self.out(torch.cat([a, b, self.up(m)], dim=1))


batch = torch.export.Dim("batch")
OWN_FILES = ("make.py", "planted_models.py")


def cases():
    torch.manual_seed(1)
    yield "mlp", MLP(), (torch.randn(3, 6),), ({0: batch},)
    yield "cnn", CNN(), (torch.randn(3, 2, 4, 4),), ({0: batch},)
    yield "residual", Residual(), (torch.randn(2, 3, 6, 6),), ({0: batch},)
    yield "tied", Tied(), (torch.tensor([[1, 0, 3], [6, 2, 0]]),), ({0: batch},)
    mask = torch.zeros(4, 4).masked_fill(torch.rand(4, 4) < 0.3, float("-inf")).fill_diagonal_(0)
    yield "attention", Attention(), (torch.randn(2, 4, 8), mask), ({0: batch}, None)
    tokens = torch.randint(0, 11, (2, 6))
    yield "gpt", GPT(), (tokens, tokens), ({0: batch}, {0: batch})
    yield "recurrent", Recurrent(), (torch.randn(2, 3, 3),), ({0: batch},)
    yield "in_place", InPlace(), (torch.randn(4, 6),), ({0: batch},)
    yield "unet", UNet(), (torch.randn(2, 2, 6, 6),), ({0: batch},)
    evaluated = CNN().eval()
    yield "evaluation", evaluated, (torch.randn(3, 2, 4, 4),), ({0: batch},)


# Mistakes of precision: the tests train them and read the line that the lab names.
def planted():
    import planted_models

    x, y = torch.randn(4, 16), torch.randint(0, 4, (4,))
    yield "planted_variance", planted_models.Net(planted_models.VarianceOfSquares(), 8), (x, y), ({0: batch}, {0: batch})
    yield "planted_growth", planted_models.Net(planted_models.GrowingState(), 8), (x, y), ({0: batch}, {0: batch})


def own_lines(trace):
    frames = re.findall(r'File "([^"]*)", line (\d+), in (\S+)\n?(.*)', trace)
    kept = [(pathlib.Path(file).name, line, name, text) for file, line, name, text in frames if file.endswith(OWN_FILES)]
    return "\n".join(f'  File "{file}", line {line}, in {name}\n    {text.strip()}' for file, line, name, text in kept[-1:])


def shorten(value):
    if isinstance(value, list):
        for item in value:
            shorten(item)
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "stack_trace":
                value[key] = own_lines(item)
            shorten(item)
        for key in ("torch_fn", "is_hop_single_tensor_return"):
            value.pop(key, None)


PACKED = ("gpt", "recurrent", "planted_growth")


def pack(source, target):
    """Writes the archive again with fixed times: stored, and the texts of the largest packed, as a zip tool may."""
    packed = target.stem in PACKED
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            data = old.read(info)
            if "sample_inputs" in info.filename:
                continue
            if info.filename.endswith("models/model.json"):
                model = json.loads(data)
                shorten(model)
                model["graph_module"]["module_call_graph"] = []
                graph = model["graph_module"]["graph"]
                inputs = {name for spec in graph["inputs"] for name in [spec.get("as_tensor", {}).get("name")]}
                graph["tensor_values"] = {k: v for k, v in graph["tensor_values"].items() if k in inputs}
                model["guards_code"] = []
                data = json.dumps(model, separators=(",", ":")).encode()
            text = packed and info.filename.endswith(".json")
            new.writestr(zipfile.ZipInfo(info.filename), data, zipfile.ZIP_DEFLATED if text else zipfile.ZIP_STORED)


def weighted(y):
    return (y.float() * torch.randn(y.shape, generator=torch.Generator().manual_seed(3))).sum()


def record_steps(name, model, args, dtypes):
    for short in dtypes:
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(short)
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            path = here / f"step.{name}.{short}.safetensors"
            record.record_step(copy.deepcopy(model), args, weighted, path)


def exported(name, model, args, shapes):
    program = torch.export.export(model, args, dynamic_shapes=shapes)
    torch.export.save(program, here / f"full_{name}.pt2")
    pack(here / f"full_{name}.pt2", here / f"{name}.pt2")
    (here / f"full_{name}.pt2").unlink()
    return program


def main():
    for name, model, args, shapes in cases():
        record_steps(name, model, args, {"mlp": ["f32", "bf16", "f16"], "cnn": ["f32"]}.get(name, []))
        program = exported(name, model, args, shapes)
        named = reference.run(program, args, {})
        inputs = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        named.update({f"input.{n}": a.contiguous().clone() for n, a in zip(inputs, args)})
        safetensors.torch.save_file(named, here / f"{name}.safetensors")
        print(name, (here / f"{name}.pt2").stat().st_size, (here / f"{name}.safetensors").stat().st_size)
    for name, model, args, shapes in planted():
        exported(name, model, args, shapes)


if __name__ == "__main__":
    main()
