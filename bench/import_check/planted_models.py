"""Small models, each with one mistake of precision as people write it, in the forward of one of its modules (PyTorch
records the lines of these alone). The comment "bug" marks the line to be named;
where two lines make it together (a value, and the op that it breaks), both are marked."""

import torch
from torch import nn
from torch.nn import functional as F


class Middle(nn.Module):
    """Between two layers: [N, width] -> [N, width]."""


class Loss(nn.Module):
    """Of logits [N, 4] and classes [N]."""


class Net(nn.Module):
    """Classifies 16 numbers; one part has the mistake."""

    def __init__(self, part, width=32):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.second = nn.Linear(width, width)
        self.middle = part if isinstance(part, Middle) else nn.Identity()
        self.last = nn.Linear(width, 4)
        self.loss = part if isinstance(part, Loss) else nn.CrossEntropyLoss()

    def forward(self, x, y):
        h = self.middle(torch.tanh(self.second(torch.tanh(self.first(x)))))
        logits = self.last(h)
        return self.loss(logits, y), logits


class MissingScale(Middle):
    """Attention whose scores are not divided by the root of the width, in a model with large activations."""

    def forward(self, h):
        q = (h * 60).view(-1, 4, 8)
        scores = q @ q.transpose(1, 2) * 20  # bug
        return (scores.softmax(-1) @ h.view(-1, 4, 8)).flatten(1)


class VarianceOfSquares(Middle):
    """The variance as E[x^2] - E[x]^2 of numbers far from 0."""

    def forward(self, h):
        h = h + 30
        mean = h.mean(-1, keepdim=True)
        variance = (h * h).mean(-1, keepdim=True) - mean * mean  # bug
        return (h - mean) / variance.sqrt()  # bug


class LogOfProbability(Loss):
    """log of softmax, where one probability becomes 0."""

    def forward(self, logits, y):
        p = torch.softmax(logits * 30, -1)  # bug
        return -torch.log(p).gather(1, y[:, None]).mean()  # bug


class LargeMask(Middle):
    """A mask of -1e9, which is -Inf in f16: rows in which all is masked become NaN."""

    def forward(self, h):
        s = h.view(-1, 4, 8)
        masked = s.masked_fill(s.mean(-1, keepdim=True) > 0, -1e9)  # bug
        return (masked.softmax(-1) * s).flatten(1)  # bug


class LongSum(Loss):
    """A sum of squares of a whole batch that should be a mean."""

    def forward(self, logits, y):
        error = (logits.softmax(-1) - F.one_hot(y, 4)) * 80
        return (error * error).sum() * 0.0001  # bug


class LayerNormByHand(Middle):
    """The squares of large activations exceed f16 before their mean is taken."""

    def forward(self, h):
        h = h * 2000
        centred = h - h.mean(-1, keepdim=True)
        variance = (centred**2).mean(-1, keepdim=True)  # bug
        return centred / (variance + 1e-5).sqrt()


class EpsTooSmall(Middle):
    """An eps of 1e-9, which is 0 in f16, where a row has no spread."""

    def forward(self, h):
        h = F.relu(h - 0.6)
        spread = h.std(-1, keepdim=True, unbiased=False)
        return h / (spread + 1e-9)  # bug


class NormOfSmall(Middle):
    """The squares of small numbers are 0 in f16, and so is their norm."""

    def forward(self, h):
        h = h * 1e-5
        size = (h * h).sum(-1, keepdim=True).sqrt()  # bug
        return h / size  # bug


class ExpWithoutMaximum(Middle):
    """softmax by hand without subtracting the largest score."""

    def forward(self, h):
        e = torch.exp(h * 14)  # bug
        return e / e.sum(-1, keepdim=True)


class LogSumExp(Loss):
    """log sum exp by hand in the loss."""

    def forward(self, logits, y):
        scores = logits * 25
        total = torch.log(torch.exp(scores).sum(-1))  # bug
        return (total - scores.gather(1, y[:, None])[:, 0]).mean()


class CrossEntropyByHand(Loss):
    """log(1 - p) where p rounds to 1."""

    def forward(self, logits, y):
        p = torch.sigmoid(logits * 20)
        t = F.one_hot(y, 4)
        return -(t * torch.log(p + 1e-4) + (1 - t) * torch.log(1 - p)).mean()  # bug


class ProductOfProbabilities(Middle):
    """The product of many probabilities is 0 before its log is taken."""

    def forward(self, h):
        p = torch.sigmoid(h) * 0.3
        likelihood = p.prod(-1, keepdim=True)  # bug
        return h * torch.log(likelihood) * 0.02  # bug


class GramMatrix(Middle):
    """The Gram matrix of large features, not divided by their number."""

    def forward(self, h):
        features = (h * 300).view(-1, 4, 8)
        gram = features @ features.transpose(1, 2)  # bug
        return torch.cat([gram.flatten(1) / 7e5, h[:, :16]], 1)


class ReciprocalOfSmall(Middle):
    """1 / x of a number that is below f16."""

    def forward(self, h):
        size = h.abs().mean(-1, keepdim=True) * 1e-6
        inverse = 1 / size  # bug
        return h * inverse * 1e-6


class SmallLoss(Loss):
    """A loss weighted by 1e-6: its gradients are below f16."""

    def forward(self, logits, y):
        return F.cross_entropy(logits, y) * 1e-6  # bug


class SoftplusByHand(Middle):
    """log(1 + exp(x)) of large x."""

    def forward(self, h):
        x = h * 15
        return torch.log(1 + torch.exp(x)) / 15  # bug


class CosineWithoutEps(Middle):
    """The cosine of rows that are 0 after a ReLU, with an eps of 1e-12."""

    def forward(self, h):
        h = F.relu(h - 0.7)
        size = torch.linalg.vector_norm(h, dim=-1, keepdim=True)
        return h / size.clamp(min=1e-12)  # bug


class GrowingState(Middle):
    """A state that doubles in each of 20 steps."""

    def forward(self, h):
        state = h
        for _ in range(20):
            state = state * 2 + h  # bug
        return state * 2.0**-20


class HighPower(Middle):
    """A polynomial feature of high degree."""

    def forward(self, h):
        x = h * 6
        return x.pow(8) * 1e-6  # bug


class SquaredDistance(Middle):
    """Distances by |a|^2 + |b|^2 - 2ab, which is below 0 after rounding."""

    def forward(self, h):
        near = h + 1e-3
        far = (h * h).sum(-1, keepdim=True) + (near * near).sum(-1, keepdim=True)
        squared = far - 2 * (h * near).sum(-1, keepdim=True)  # bug
        return h * torch.sqrt(squared) * 100  # bug


class SmallActivations(Middle):
    """A layer whose input is scaled down to 1e-4: e4m3 has no such numbers."""

    def __init__(self, width=32):
        super().__init__()
        self.fc = nn.Linear(width, width, bias=False)

    def forward(self, h):
        h = h * 1e-4
        return self.fc(h) * 1e4  # bug


class LargeActivations(Middle):
    """A layer whose input is scaled up over the largest number of e4m3."""

    def __init__(self, width=32):
        super().__init__()
        self.fc = nn.Linear(width, width, bias=False)

    def forward(self, h):
        h = h * 2000
        return self.fc(h) / 2000  # bug


class HalfSoftmax(Middle):
    """The model itself casts its scores to f16."""

    def forward(self, h):
        s = (h * 3e4).view(-1, 4, 8)
        half = (s + s).half()  # bug
        return half.softmax(-1).float().flatten(1)  # bug


SGD = ["--optimizer", "sgd", "--lr", "0.001"]
ADAM = ["--optimizer", "adamw", "--lr", "0.002"]

# The part, the recipe under which the mistake shows, and how it is trained.
CASES = [
    (MissingScale, "fp16-pure", SGD),
    (VarianceOfSquares, "bf16-pure", SGD),
    (LogOfProbability, "fp16-pure", SGD),
    (LargeMask, "fp16-pure", SGD),
    (LongSum, "fp16-pure", SGD),
    (LayerNormByHand, "fp16-pure", SGD),
    (EpsTooSmall, "fp16-pure", SGD),
    (NormOfSmall, "fp16-pure", SGD),
    (ExpWithoutMaximum, "fp16-pure", SGD),
    (LogSumExp, "fp16-pure", SGD),
    (CrossEntropyByHand, "bf16-pure", SGD),
    (ProductOfProbabilities, "fp16-pure", SGD),
    (GramMatrix, "amp-fp16", SGD),
    (ReciprocalOfSmall, "fp16-pure", SGD),
    (SmallLoss, "fp16-static:1", ADAM),
    (SoftplusByHand, "fp16-pure", SGD),
    (CosineWithoutEps, "fp16-pure", SGD),
    (GrowingState, "amp-fp16", SGD),
    (HighPower, "fp16-pure", SGD),
    (SquaredDistance, "bf16-pure", SGD),
    (SmallActivations, "e4m3", ADAM),
    (LargeActivations, "e4m3", ADAM),
]
