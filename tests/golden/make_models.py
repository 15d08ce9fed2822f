#!/usr/bin/env python3
"""Writes models.json: losses and gradients of examples/models, in PyTorch (CPU, float64), for tests/nn/models_test.cpp.

    pip install torch && ./make_models.py > models.json

Parameters, inputs and noise are numbers that both sides compute (`numbers`). Of each gradient the file holds its sum
with the weights cos(i + 1), and its norm.
"""
import json
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def numbers(shape, key):
    """From -1 to 1: the fraction of (i + 1)(key + 1) times 2654435761 / 2^32."""
    i = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64)
    return (((i * (key + 1) * 2654435761) % 2**32).double() / 2**31 - 1).reshape(shape)


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.stride, self.more = stride, (outputs - inputs) // 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x):
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more, self.more))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        for n, (inputs, outputs) in enumerate([(16, 16), (16, 32), (32, 64)], 1):
            blocks = [BasicBlock(inputs, outputs, 1 if n == 1 else 2)]
            blocks += [BasicBlock(outputs, outputs, 1) for _ in range(2)]
            setattr(self, f"layer{n}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 64, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.positions = nn.Parameter(torch.zeros(1, 17, 64))
        layer = lambda: nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", norm_first=True, batch_first=True)
        self.blocks = nn.Sequential(layer(), layer())
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        seen = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), 1, -1), seen], 1) + self.positions
        return self.head(self.norm(self.blocks(tokens))[:, 0])


class RowReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 128), nn.Linear(16, 128), nn.Linear(128, 64)
        self.mean, self.log_variance = nn.Linear(128, 16), nn.Linear(128, 16)

    def loss(self, x, noise):
        h = F.relu(self.fc1(x))
        m, v = self.mean(h), self.log_variance(h)
        z = torch.distributions.Normal(m, (v / 2).exp())
        logits = self.fc3(F.relu(self.fc2(m + noise * z.scale)))
        divergence = torch.distributions.kl_divergence(z, torch.distributions.Normal(0, 1)).sum()
        return (F.binary_cross_entropy_with_logits(logits, x, reduction="sum") + divergence) / len(x)


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.project = nn.Linear(64, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.project(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + (self.shortcut(x) if self.shortcut else x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time1, self.time2 = nn.Linear(32, 64), nn.Linear(64, 64)
        self.first, self.last = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 1, 3, padding=1)
        self.before, self.middle, self.after = ResidualBlock(32, 32), ResidualBlock(64, 64), ResidualBlock(64, 32)
        self.down, self.up = nn.Conv2d(32, 64, 3, 2, 1), nn.Conv2d(64, 32, 3, padding=1)
        self.norm = nn.GroupNorm(8, 32)

    def forward(self, x, t):
        angle = t[:, None] * torch.exp(torch.arange(16.0) * (-math.log(10000.0) / 16))
        time = self.time2(F.silu(self.time1(torch.cat([angle.sin(), angle.cos()], 1))))
        wide = self.before(self.first(x), time)
        narrow = F.interpolate(self.middle(self.down(wide), time), scale_factor=2.0)
        y = self.after(torch.cat([self.up(narrow), wide], 1), time)
        return self.last(F.silu(self.norm(y)))

    def loss(self, x, noise, t):
        kept = torch.cos((t.double() + 1) * (math.pi / 2 / 101))[:, None, None, None] ** 2
        noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
        return F.mse_loss(self(noisy, t.double()), noise)


images, classes, times = numbers((4, 1, 8, 8), 1000), torch.tensor([3, 1, 9, 0]), torch.tensor([0, 7, 50, 99])
models = {
    "resnet20": (ResNet20(), lambda m: F.cross_entropy(m(images), classes)),
    "vit": (Vit(), lambda m: F.cross_entropy(m(images), classes)),
    "lstm": (RowReader(), lambda m: F.cross_entropy(m(images), classes)),
    "vae": (Vae(), lambda m: m.loss(images.flatten(1) / 2 + 0.5, numbers((4, 16), 1001))),
    "unet": (UNet(), lambda m: m.loss(images, numbers((4, 1, 8, 8), 1001), times)),
}
out = {}
for name, (model, loss_of) in models.items():
    model.train()
    parameters = sorted(model.named_parameters())
    with torch.no_grad():
        for key, (path, p) in enumerate(parameters):
            if p.dim() > 1:
                p.copy_(numbers(p.shape, key) / math.sqrt(p.numel() / p.shape[0]))
            else:
                p.copy_(numbers(p.shape, key) * 0.2 + (1 if path.endswith("weight") else 0))
    loss = loss_of(model)
    loss.backward()
    gradients = {}
    for path, p in parameters:
        g = p.grad.flatten()
        gradients[path] = [(g * torch.cos(torch.arange(1.0, len(g) + 1))).sum().item(), g.norm().item()]
    out[name] = {"loss": loss.item(), "gradients": gradients}
lines = json.dumps(out, separators=(", ", ": "))
print(lines.replace("], ", "],\n").replace("{", "{\n"))
