"""Ops at the points where their definitions meet: bounds, ties, zero. Each case has a parameter of its own, so that the
table names the case that differs."""

import torch
from torch import nn
from torch.nn import functional as F

_POINTS = [
    -21.0,
    -7.0,
    -6.0,
    -4.0,
    -3.0,
    -2.5,
    -1.0,
    -0.5,
    0.0,
    0.25,
    0.5,
    1.0,
    2.0,
    2.5,
    3.0,
    4.0,
    6.0,
    7.0,
    20.0,
    21.0,
]
_POSITIVE = [0.01, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0]
_PAIRS = [
    [7.5, 2.0],
    [-7.5, 2.0],
    [7.5, -2.0],
    [-7.5, -2.0],
    [6.0, 3.0],
    [-6.0, 3.0],
    [0.0, 2.0],
    [1.0, 0.1],
    [-1.0, 0.1],
    [123456.7, 0.3],
    [1e15, 7.0],
    [5.0, 1e10],
    [-5.0, 1e10],
    [2.0, 2.0],
]

ACTIVATIONS = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "celu": lambda x: F.celu(x, 0.5),
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softplus_beta": lambda x: F.softplus(x, beta=2.0, threshold=5.0),
    "softsign": F.softsign,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "threshold": lambda x: F.threshold(x, 0.5, -1.0),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "tanhshrink": F.tanhshrink,
    "glu": F.glu,
    "prelu": lambda x: F.prelu(x, x.new_full((1,), 0.2)),
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "softmin": lambda x: F.softmin(x, 0),
    "abs": torch.abs,
    "sign": torch.sign,
    "clamp": lambda x: x.clamp(-3, 3),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_max": lambda x: x.clamp_max(1.0),
    "square": torch.square,
    "exp": lambda x: torch.exp(x / 4),
    "expm1": lambda x: torch.expm1(x / 4),
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan,
    "sinh": lambda x: torch.sinh(x / 4),
    "cosh": lambda x: torch.cosh(x / 4),
    "atan": torch.atan,
    "asinh": torch.asinh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "frac": torch.frac,
    "exp2": torch.exp2,
    "round_decimals": lambda x: torch.round(x * 0.3337, decimals=2),
    "nan_to_num": torch.nan_to_num,
    "reciprocal": lambda x: torch.reciprocal(x + 0.125),
    "pow3": lambda x: x**3,
    "pow_half": lambda x: (x * x + 1) ** 0.5,
    "pow0": lambda x: x**0,
    "sinc": lambda x: torch.sinc(x),
    "heaviside_where": lambda x: torch.where(x > 0, x, -2 * x),
    "relu_on_tie": lambda x: torch.maximum(x, torch.zeros_like(x)),
}
POSITIVE = {
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "log1p": torch.log1p,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "logit": lambda x: torch.logit(x / 11),
    "logit_eps": lambda x: torch.logit(x / 10, eps=0.1),
    "xlogy": lambda x: torch.xlogy(x, x + 1),
    "pow_tensor": lambda x: x**x,
    "pow_scalar": lambda x: 2.0**x,
    "asin": lambda x: torch.asin(x / 11),
    "acos": lambda x: torch.acos(x / 11),
    "acosh": lambda x: torch.acosh(x + 1),
    "atanh": lambda x: torch.atanh(x / 11),
}
PAIRS = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp_far": lambda x, y: torch.lerp(x, y, 0.7),
    "lerp_tensor": lambda x, y: torch.lerp(x, y, torch.sigmoid(y)),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "clamp_tensor": lambda x, y: torch.clamp(x, min=y, max=y + 3),
    "clamp_min_tensor": lambda x, y: torch.clamp_min(x, y),
    "clamp_max_tensor": lambda x, y: torch.clamp_max(x, y),
    "logaddexp": torch.logaddexp,
    "copysign": lambda x, y: torch.copysign(x, y.detach()),
    "floor_scalar": lambda x, y: torch.remainder(x, 0.7) + torch.fmod(y, 0.7),
    "ldexp": lambda x, y: x - y,
    "squared_difference": lambda x, y: F.mse_loss(x, y),
    "l1": lambda x, y: F.l1_loss(x, y, reduction="sum"),
    "smooth_l1": lambda x, y: F.smooth_l1_loss(x, y, beta=5.5),
    "huber": lambda x, y: F.huber_loss(x, y, delta=5.5),
    "cosine": lambda x, y: F.cosine_similarity(x, y, 0),
    "cross": lambda x, y: torch.outer(x, y),
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x / 1e4, torch.sigmoid(y)),
    "soft_margin": lambda x, y: F.soft_margin_loss(x / 1e4, torch.sign(y.detach())),
    "poisson_nll": lambda x, y: F.poisson_nll_loss(x / 1e15, y.abs()),
    "dist": lambda x, y: torch.dist(x, y),
}
# Of a matrix [4, 6] that has ties and a zero row.
MATRIX = {
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(0),
    "max": lambda x: x.max(),
    "max_dim": lambda x: x.max(1)[0],
    "min_dim": lambda x: x.min(0)[0],
    "norm": lambda x: x.norm(),
    "norm_rows": lambda x: torch.linalg.vector_norm(x, dim=1),
    "norm1": lambda x: x.norm(p=1, dim=0),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1),
    "norm3": lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    "std": lambda x: x[:3].std(1),
    "var": lambda x: x.var(0),
    "var_mean": lambda x: torch.var_mean(x, dim=1)[0],
    "prod": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(1),
    "cumsum": lambda x: x.cumsum(0),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "cummax": lambda x: x.cummax(1)[0],
    "median": lambda x: x.median(1)[0],
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x[:3].topk(3, 1)[0],
    "kthvalue": lambda x: x[2:3].kthvalue(2, 1)[0],
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0, keepdim=True),
    "normalize": lambda x: F.normalize(x, dim=1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x, 3),
    "diagonal": lambda x: torch.diagonal(x),
    "trace": lambda x: x[:, :4].trace(),
    "tril": lambda x: x.tril(),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(2, 1),
    "repeat": lambda x: x.repeat(2, 1),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "gather": lambda x: x.gather(1, torch.tensor([[0, 0], [1, 5], [2, 2], [3, 1]])),
    "scatter_add": lambda x: torch.zeros(4, 3).to(x.dtype).scatter_add(1, torch.arange(24).reshape(4, 6) % 3, x),
    "index_add": lambda x: torch.zeros(5, 6).to(x.dtype).index_add(0, torch.tensor([0, 2, 2, 4]), x),
    "index_copy": lambda x: torch.zeros(5, 6).to(x.dtype).index_copy(0, torch.tensor([0, 2, 3, 4]), x),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0, 3]), 2.0),
    "scatter_mean": lambda x: torch.ones(4, 3)
    .to(x.dtype)
    .scatter_reduce(1, torch.arange(24).reshape(4, 6) // 2 % 3, x, "mean", include_self=False),
    "masked_put": lambda x: x.masked_scatter(x > 0, x.flatten()[:20] * 2),
    "take": lambda x: x.take(torch.tensor([[1, -1], [7, 7]])),
    "masked_scatter": lambda x: x.masked_fill(x > 1, 0.5),
    "take_along": lambda x: x.take_along_dim(x.argsort(1), 1),
    "cdist": lambda x: torch.cdist(x, x + 1),
    "addmm": lambda x: torch.addmm(x[:, :4], x, x.t(), beta=0.5, alpha=2.0),
    "repeat_rows": lambda x: x.repeat_interleave(torch.tensor([1, 0, 3, 2]), 0),
    "std_mean": lambda x: torch.std_mean(x[:3], 1)[0],
    "cosine_embedding": lambda x: F.cosine_embedding_loss(x[:3], x[:3].flip(1), torch.tensor([1, -1, 1])),
    "tensordot": lambda x: torch.tensordot(x, x, dims=([1], [1])),
    "kron": lambda x: torch.kron(x, x),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0] * 2,
    "chunked": lambda x: torch.cat(x.chunk(3, 1)[::-1], 1),
    "hstack": lambda x: torch.hstack([x, x]),
    "vstack": lambda x: torch.vstack([x, x]),
    "dstack": lambda x: torch.dstack([x, x]),
    "block_diag": lambda x: torch.block_diag(x, x),
    "diag_embed": lambda x: torch.diag_embed(x),
    "diag": lambda x: torch.diag(x[0]),
    "triu_mask": lambda x: x.masked_fill(torch.ones(4, 6).triu(1).bool(), float("-inf")).softmax(1),
    "nan_sum": lambda x: torch.nansum(x, 1),
    "count": lambda x: x * x.count_nonzero(1).unsqueeze(1),
    "bucketize": lambda x: x * torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 2.0]).to(x.dtype)),
    "aminmax": lambda x: x.aminmax(dim=1)[1],
    "rot90": lambda x: x.rot90(),
    "movedim": lambda x: x.movedim(0, 1) * 1,
    "rsqrt_norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "argmax": lambda x: x * x.argmax(1, keepdim=True),
    "integers": lambda x: x * (torch.arange(-6, 18).reshape(4, 6) // 4 + torch.arange(-6, 18).reshape(4, 6) % -5),
    "bits": lambda x: x * ((torch.arange(24).reshape(4, 6) & 6) | 1 ^ (torch.arange(24).reshape(4, 6) >> 1)),
    "searchsorted": lambda x: x * torch.searchsorted(torch.tensor([-1.0, 0.0, 2.0]).to(x.dtype), x.detach()),
    "embedding": lambda x: F.embedding(torch.tensor([0, 1, 1, 3]), x, padding_idx=1),
    "embedding_bag": lambda x: F.embedding_bag(torch.tensor([[0, 1], [1, 3]]), x, mode="sum"),
    "one_hot": lambda x: x @ F.one_hot(torch.tensor([0, 2, 1, 2, 0, 1]), 3).to(x.dtype),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 5, 2, -100])),
    "cross_entropy_soft": lambda x: F.cross_entropy(x, torch.full((4, 6), 1 / 6.0).to(x.dtype), label_smoothing=0.1),
    "cross_entropy_weights": lambda x: F.cross_entropy(
        x, torch.tensor([0, 5, 2, 1]), weight=torch.arange(1.0, 7.0).to(x.dtype), label_smoothing=0.1
    ),
    "nll": lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([0, 5, 2, 1])),
    "kl": lambda x: F.kl_div(x.log_softmax(1), torch.full((4, 6), 1 / 6.0).to(x.dtype), reduction="batchmean"),
    "multi_margin": lambda x: F.multi_margin_loss(x, torch.tensor([0, 5, 2, 1])),
    "hinge": lambda x: F.hinge_embedding_loss(x, torch.ones(4, 6).to(x.dtype)),
    "triplet": lambda x: F.triplet_margin_loss(x, x + 1, x - 2),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "bmm": lambda x: torch.bmm(x[None], x.t()[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None, :, :4], x[None], x.t()[None], beta=2.0, alpha=0.5),
}
# Of images [2, 4, 6, 5].
IMAGES = {
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool_ceil": lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
    "max_pool_dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool_without_padding": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 3),
    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, (4, 2)),
    "lp_pool": lambda x: F.lp_pool2d(x + 30, 2.0, 2),
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"),
    "pad_cut": lambda x: F.pad(x, (-1, 2, 1, -1), value=0.5),
    "nearest": lambda x: F.interpolate(x, scale_factor=1.7),
    "nearest_exact": lambda x: F.interpolate(x, size=(9, 4), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, size=(9, 4), mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(x, size=(9, 4), mode="bilinear", align_corners=True),
    "bilinear_antialias": lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
    "bicubic": lambda x: F.interpolate(x, size=(9, 4), mode="bicubic"),
    "area": lambda x: F.interpolate(x, size=(3, 2), mode="area"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[..., :4], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "fold": lambda x: F.fold(x.reshape(2, 8, 15)[..., :12], (4, 5), 2),
    "instance_norm": lambda x: F.instance_norm(x),
    "group_norm": lambda x: F.group_norm(x, 2),
    "local_response": lambda x: F.local_response_norm(x, 3),
    "conv_same": lambda x: F.conv2d(x, x[:1, :, :2, :3], padding="same"),
    "grid_sample": lambda x: F.grid_sample(
        x,
        F.affine_grid(
            torch.tensor([[[0.8, 0.1, 0.1], [0.0, 1.1, -0.2]]] * 2).to(x.dtype), (2, 4, 5, 5), align_corners=False
        ),
        align_corners=False,
    ),
    "conv3d": lambda x: F.conv3d(x[None], x[None, :, :, :2, :2].transpose(0, 1)[:, :1].repeat(1, 2, 1, 1, 1)),
    "transposed": lambda x: F.conv_transpose2d(
        x, x[:, :2, :3, :3].transpose(0, 1).repeat(2, 1, 1, 1)[:4], stride=2, padding=1, output_padding=1
    ),
}


GROUPS = (ACTIVATIONS, POSITIVE, PAIRS, MATRIX, IMAGES)


class Cases(nn.Module):
    def __init__(self, cases, *given):
        super().__init__()
        self.cases = cases
        for name in cases:
            for i, values in enumerate(given):
                self.register_parameter(f"{name}_{i}", nn.Parameter(values.clone()))
        self.count = len(given)

    def forward(self, x):
        outputs = []
        for name, f in self.cases.items():
            y = f(*(getattr(self, f"{name}_{i}") for i in range(self.count)))
            outputs.append(y if y.is_floating_point() else y.to(x.dtype))
        return tuple(outputs)


def matrix():
    x = torch.linspace(-2, 3, 24)[torch.randperm(24, generator=torch.Generator().manual_seed(1))].reshape(4, 6)
    x[3] = 0
    x[0, 2] = x[0, 4] = 3.5
    x[1, 1] = x[1, 5] = -3
    return x


def images():
    return torch.linspace(-3, 3, 240)[torch.randperm(240, generator=torch.Generator().manual_seed(1))].reshape(
        2, 4, 6, 5
    )


def _cases(cases, *make):
    return lambda: (Cases(cases, *(m() for m in make)), (torch.zeros(2),), {})


MODELS = {
    "ops_activations": _cases(ACTIVATIONS, lambda: torch.tensor(_POINTS)),
    "ops_positive": _cases(POSITIVE, lambda: torch.tensor(_POSITIVE)),
    "ops_pairs": _cases(
        PAIRS, lambda: torch.tensor([p[0] for p in _PAIRS]), lambda: torch.tensor([p[1] for p in _PAIRS])
    ),
    "ops_matrix": _cases(MATRIX, matrix),
    "ops_images": _cases(IMAGES, images),
}
