"""The models whose steps are judged, and the bugs that are planted in them."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.act = nn.ReLU()
        self.pool = nn.AvgPool2d(3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.gelu = nn.GELU()
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(8 * 16, 10)

    def forward(self, x):
        x = self.pool(self.act(self.norm(self.conv(x))))
        x = x + self.gelu(self.conv2(x))
        return self.fc(self.drop(x.flatten(1)))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def scores(self, q, k):
        return q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5

    def mask(self, t):
        return torch.ones(t, t, dtype=torch.bool).tril()

    def probabilities(self, s):
        return s.softmax(-1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.qkv(x).chunk(3, dim=-1))
        s = self.scores(q, k)
        s = s.masked_fill(self.mask(t).logical_not(), float("-inf"))
        p = self.probabilities(s)
        return self.proj((p @ v).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln2 = nn.LayerNorm(width)
        self.fc = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def act(self, x):
        return F.gelu(x)

    def join(self, x, y):
        return x + y

    def forward(self, x):
        x = self.join(x, self.attn(self.ln1(x)))
        return x + self.fc2(self.act(self.fc(self.ln2(x))))


class Text(nn.Module):
    def __init__(self, width=32, heads=4, tokens=50, places=16):
        super().__init__()
        self.wte = nn.Embedding(tokens, width)
        self.wpe = nn.Embedding(places, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.wte.weight

    def places(self, t):
        return torch.arange(t)

    def loss(self, logits, labels):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe(self.places(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.head(self.ln(x))
        return self.loss(logits, labels), logits


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)
        self.fc3 = nn.Linear(64, 8)

    def forward(self, x):
        return self.fc3(torch.tanh(self.norm(self.fc2(torch.relu(self.fc1(x))))))


def image():
    return Image(), (torch.randn(8, 3, 8, 8),)


def text():
    tokens = torch.randint(0, 50, (4, 12))
    return Text(), (tokens, tokens.clone())


def plain():
    return Plain(), (torch.randn(32, 64),)


MODELS = {"image": image, "text": text, "plain": plain}


def loss_of(y):
    """The model's own loss, or a random weighting of its output."""
    if isinstance(y, tuple):
        return y[0]
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    return (y.float() * weights).sum() / y.shape[0]


# --- bugs ------------------------------------------------------------------------------------------------------------


def set_forward(module, forward):
    module.forward = forward.__get__(module)


def transposed(m):
    set_forward(m.fc2, lambda self, x: F.linear(x, self.weight.t(), self.bias))


def layer_norm_eps(m):
    m.h[0].ln2.eps = 1e-6


def batch_norm_eps(m):
    m.norm.eps = 1e-3


def missing_scale(m):
    m.h[1].attn.scores = lambda q, k: q @ k.transpose(-2, -1)


def mask_off_by_one(m):
    m.h[0].attn.mask = lambda t: torch.ones(t, t, dtype=torch.bool).tril(1)


class LinearWithoutBiasGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return F.linear(x, w, b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.flatten(0, -2).t() @ x.flatten(0, -2), torch.zeros(w.shape[0])


def dropped_bias_gradient(m):
    set_forward(m.h[1].fc, lambda self, x: LinearWithoutBiasGradient.apply(x, self.weight, self.bias))


def tanh_for_erf(m):
    m.gelu.approximate = "tanh"


def tanh_for_erf_in_text(m):
    m.h[1].act = lambda x: F.gelu(x, approximate="tanh")


def wrong_momentum(m):
    m.norm.momentum = 0.01


def wrong_axis(m):
    m.h[0].attn.probabilities = lambda s: s.softmax(-2).nan_to_num()


def double_dropout_scale(m):
    set_forward(m.drop, lambda self, x: F.dropout(x, self.p) / (1 - self.p))


def wrong_padding(m):
    set_forward(m.conv, lambda self, x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), self.weight, self.bias))


def flipped_kernel(m):
    set_forward(m.conv2, lambda self, x: F.conv2d(x, self.weight.flip(2, 3), self.bias, padding=1, groups=2))


def unbiased_variance(m):
    def forward(self, x):
        mean, var = x.mean(0), x.var(0)
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(var, 0.1)
            self.num_batches_tracked += 1
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias

    set_forward(m.norm, forward)


def biased_running_variance(m):
    def forward(self, x):
        with torch.no_grad():
            kept = self.running_var.lerp(x.var(0, unbiased=False), 0.1)
        y = F.batch_norm(x, self.running_mean, self.running_var.clone(), self.weight, self.bias, True, 0.1, self.eps)
        with torch.no_grad():
            self.running_var.copy_(kept)
            self.num_batches_tracked += 1
        return y

    set_forward(m.norm, forward)


def places_from_one(m):
    m.places = lambda t: torch.arange(t) + 1


def residual_twice(m):
    m.h[1].join = lambda x, y: x + x + y


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.relu()

    @staticmethod
    def backward(ctx, g):
        return g


def relu_gradient(m):
    set_forward(m.act, lambda self, x: Through.apply(x))


def padding_not_counted(m):
    m.pool.count_include_pad = False


def labels_not_shifted(m):
    m.loss = lambda logits, labels: F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, :-1].flatten())


def rounded_operands(m):
    def forward(self, x):
        tf32 = lambda t: (t.detach().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) + (t - t.detach())
        return F.linear(tf32(x), tf32(self.weight), self.bias)

    set_forward(m.fc1, forward)


class LayerNormWithoutMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return F.layer_norm(x, w.shape, w, b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        scale = (x.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
        normal = (x - x.mean(-1, keepdim=True)) * scale
        return g * w * scale, (g * normal).flatten(0, -2).sum(0), g.flatten(0, -2).sum(0)


def layer_norm_gradient(m):
    set_forward(m.ln, lambda self, x: LayerNormWithoutMeans.apply(x, self.weight, self.bias))


def tied_gradient(m):
    set_forward(m.head, lambda self, x: F.linear(x, self.weight.detach()))


def bias_twice(m):
    set_forward(m.h[0].attn.proj, lambda self, x: F.linear(x, self.weight, self.bias) + self.bias)


# name, model, what plants it, the op of the graph, and a part of its record's name.
BUGS = [
    ("transposed weight", "plain", transposed, "aten.linear.default", "fc2"),
    ("eps of a layer norm: 1e-6 for 1e-5", "text", layer_norm_eps, "aten.layer_norm.default", "h.0.ln2"),
    ("eps of a batch norm: 1e-3 for 1e-5", "image", batch_norm_eps, "aten.batch_norm.default", "norm"),
    ("missing scale of scores", "text", missing_scale, "aten.mul.Tensor", "h.1.attn"),
    ("mask off by one", "text", mask_off_by_one, "aten.tril.default", "h.0.attn"),
    ("dropped gradient of a bias", "text", dropped_bias_gradient, "aten.linear.default", "h.1.fc.bias"),
    ("tanh for erf in a GELU (module)", "image", tanh_for_erf, "aten.gelu.default", "gelu"),
    ("tanh for erf in a GELU (function)", "text", tanh_for_erf_in_text, "aten.gelu.default", "h.1"),
    ("momentum of running statistics: 0.01 for 0.1", "image", wrong_momentum, "aten.batch_norm.default", "norm"),
    ("softmax over the wrong axis", "text", wrong_axis, "aten.softmax.int", "h.0.attn"),
    ("dropout scales twice", "image", double_dropout_scale, "aten.dropout.default", "drop"),
    ("padding with the border's values", "image", wrong_padding, "aten.conv2d.default", "conv"),
    ("flipped kernel", "image", flipped_kernel, "aten.conv2d.default", "conv2"),
    ("unbiased variance in a batch norm", "plain", unbiased_variance, "aten.batch_norm.default", "norm"),
    ("biased running variance", "plain", biased_running_variance, "aten.batch_norm.default", "norm"),
    ("positions count from one", "text", places_from_one, "aten.arange.default", "wpe"),
    ("residual added twice", "text", residual_twice, "aten.add.Tensor", "h.1"),
    ("ReLU passes all gradients", "image", relu_gradient, "aten.relu.default", "norm"),
    ("padding not counted in an average pool", "image", padding_not_counted, "aten.avg_pool2d.default", "pool"),
    ("labels not shifted", "text", labels_not_shifted, "aten.slice.Tensor", ""),
    ("TF32 operands in an f32 product", "plain", rounded_operands, "aten.linear.default", "fc1"),
    ("gradient of a layer norm without its means", "text", layer_norm_gradient, "aten.layer_norm.default", "h.1"),
    ("gradient of a tied head dropped", "text", tied_gradient, "aten.linear.default", "head.weight"),
    ("bias added twice", "text", bias_twice, "aten.linear.default", "h.0.attn.proj"),
]
