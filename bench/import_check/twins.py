"""Two models as one writes them in PyTorch; twins.h has them as one writes them here. Names of parameters are equal."""

import torch
from torch import nn
from torch.nn import functional as F


def conv3x3(i, o, stride=1):
    return nn.Conv2d(i, o, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.more, self.step = (o - i) // 2, stride
        self.conv1, self.bn1 = conv3x3(i, o, stride), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = conv3x3(o, o), nn.BatchNorm2d(o)

    def forward(self, x):
        shortcut = x
        if self.step > 1:
            shortcut = x[:, :, :: self.step, :: self.step]
        if self.more > 0:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, self.more, self.more))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


def stage(i, o):
    return nn.Sequential(BasicBlock(i, o, 1 if i == o else 2), BasicBlock(o, o, 1), BasicBlock(o, o, 1))


class ResNet20(nn.Module):
    def __init__(self, channels=3, classes=10):
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels, 16), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = stage(16, 16), stage(16, 32), stage(32, 64)
        self.linear = nn.Linear(64, classes)

    def forward(self, images, labels):
        x = F.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return F.cross_entropy(self.linear(x.mean((2, 3))), labels)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.attn, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln2, self.fc, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attn(self.ln1(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.fc2(F.gelu(self.fc(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, tokens=1000, places=64, width=128, heads=4, layers=4):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(places, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

    def forward(self, tokens):
        x = self.h(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])))
        logits = self.head(self.ln(x))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def resnet(steps, batch=16, size=32):
    return ResNet20(), {
        "images": torch.randn(steps, batch, 3, size, size),
        "labels": torch.randint(0, 10, (steps, batch)),
    }


def gpt(steps, batch=8, length=64):
    return GPT(), {"tokens": torch.randint(0, 1000, (steps, batch, length))}
