"""Models of kinds that models.py does not have: recurrent, dense prediction, diffusion, experts, state spaces, speech,
two towers. Random weights, small inputs, nothing fetched."""

import math

import torch
from torch import nn
from torch.nn import functional


class Tagger(nn.Module):
    """Two bidirectional LSTM layers over embedded words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 12, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.tag = nn.Linear(24, 5)

    def forward(self, tokens):
        return self.tag(self.lstm(self.words(tokens))[0])


class Translator(nn.Module):
    """A GRU encoder, and a GRU cell with attention over its states as decoder (Luong et al. 2015)."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 16)
        self.encoder = nn.GRU(16, 16, num_layers=2)
        self.cell = nn.GRUCell(32, 16)
        self.query = nn.Linear(16, 16, bias=False)
        self.out = nn.Linear(32, 30)

    def forward(self, source, target):
        states, last = self.encoder(self.words(source).transpose(0, 1))
        states = states.transpose(0, 1)
        h = last[-1]
        context = torch.zeros_like(h)
        logits = []
        for i in range(target.shape[1]):
            h = self.cell(torch.cat([self.words(target[:, i]), context], -1), h)
            weights = torch.bmm(states, self.query(h).unsqueeze(-1)).squeeze(-1).softmax(-1)
            context = torch.einsum("bt,btd->bd", weights, states)
            logits.append(self.out(torch.cat([h, context], -1)))
        return torch.stack(logits, 1)


class UNet(nn.Module):
    """Ronneberger et al. 2015 with batch norm, transposed convolutions and cropped skips."""

    def __init__(self, width=8, levels=3):
        super().__init__()
        block = lambda i, o: nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1, bias=False),
            nn.BatchNorm2d(o),
            nn.ReLU(inplace=True),
        )
        sizes = [width * 2**i for i in range(levels + 1)]
        self.down = nn.ModuleList(block(i, o) for i, o in zip([3, *sizes], sizes))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, stride=2) for n in reversed(sizes[:-1]))
        self.join = nn.ModuleList(block(2 * n, n) for n in reversed(sizes[:-1]))
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        skips = []
        for i, down in enumerate(self.down):
            x = down(x if i == 0 else functional.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, join in zip(self.up, self.join):
            x, skip = up(x), skips.pop()
            rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
            x = functional.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
            x = join(torch.cat([skip, x], 1))
        return self.head(x)


def _times(t, width):
    frequencies = torch.exp(-math.log(10000) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t[:, None].float() * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], -1).to(t.dtype)


class _ResBlock(nn.Module):
    def __init__(self, i, o, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, i), nn.Conv2d(i, o, 3, padding=1)
        self.time = nn.Linear(time, 2 * o)
        self.norm2, self.conv2 = nn.GroupNorm(4, o), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(functional.silu(self.norm1(x)))
        scale, shift = self.time(functional.silu(t))[:, :, None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(functional.silu(h))


class _SpatialAttention(nn.Module):
    def __init__(self, channels, context):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.own = nn.MultiheadAttention(channels, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(channels, 4, kdim=context, vdim=context, batch_first=True)

    def forward(self, x, context):
        n, c, h, w = x.shape
        y = self.norm(x).reshape(n, c, h * w).permute(0, 2, 1)
        y = y + self.own(y, y, y)[0]
        y = y + self.cross(y, context, context, need_weights=False)[0]
        return x + y.permute(0, 2, 1).reshape(n, c, h, w)


class DiffusionUNet(nn.Module):
    """The noise predictor of Ho et al. 2020 with cross attention as Rombach et al. 2022 add it."""

    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, 64))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down1, self.pool = _ResBlock(width, width, 64), nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2, self.attention = _ResBlock(width, 2 * width, 64), _SpatialAttention(2 * width, 12)
        self.middle = _ResBlock(2 * width, 2 * width, 64)
        self.up2, self.up1 = _ResBlock(4 * width, width, 64), _ResBlock(2 * width, width, 64)
        self.last = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, t, context):
        t = self.time(_times(t, self.width))
        a = self.down1(self.first(x), t)
        b = self.attention(self.down2(self.pool(a), t), context)
        y = self.up2(torch.cat([self.middle(b, t), b], 1), t)
        y = functional.interpolate(y, scale_factor=2.0, mode="nearest")
        return self.last(self.up1(torch.cat([y, a], 1), t))


class _DitBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c).unsqueeze(1).chunk(6, dim=-1)
        y = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + gate1 * self.out(y)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiffusionTransformer(nn.Module):
    """Peebles and Xie 2023."""

    def __init__(self, width=32, patch=4):
        super().__init__()
        self.width, self.patch = width, patch
        self.embed = nn.Conv2d(3, width, patch, stride=patch)
        self.place = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(_DitBlock(width, 4) for _ in range(2))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.out = nn.Linear(width, patch * patch * 3)

    def forward(self, x, t, y):
        c = self.time(_times(t, self.width)) + self.label(y)
        h = self.embed(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            h = block(h, c)
        h = self.out(self.norm(h)).reshape(x.shape[0], 4, 4, self.patch, self.patch, 3)
        return torch.einsum("nhwpqc->nchpwq", h).reshape(x.shape)


class Wavenet(nn.Module):
    """Gated dilated convolutions along time (van den Oord et al. 2016), weight-normalised."""

    def __init__(self, width=12, layers=4):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(norm(nn.Conv1d(width, 2 * width, 2, dilation=2**i)) for i in range(layers))
        self.mixes = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.up = nn.ConvTranspose1d(width, 1, 4, stride=2, padding=1)

    def forward(self, x):
        h, total = self.first(x), 0
        for i, (gate, mix) in enumerate(zip(self.gates, self.mixes)):
            a, b = gate(functional.pad(h, (2**i, 0))).chunk(2, 1)
            y = mix(torch.tanh(a) * torch.sigmoid(b))
            h, total = h + y, total + y
        return self.up(functional.leaky_relu(total, 0.1))


def _own(make, inputs):
    return lambda: (make(), inputs(), {})


def _torchvision(make, size=64):
    def made():
        import torchvision

        return make(torchvision.models), (torch.randn(2, 3, size, size),), {}

    return made


def _timm(name, size=64, **options):
    def made():
        import timm

        return timm.create_model(name, pretrained=False, **options), (torch.randn(2, 3, size, size),), {}

    return made


def _transformers(name, configuration, inputs, **options):
    def made():
        import transformers

        config = getattr(transformers, configuration)(**options)
        return getattr(transformers, name)(config), (), inputs()

    return made


def _text(vocabulary=100, length=12, labels=True, mask=True):
    def made():
        tokens = torch.randint(3, vocabulary, (2, length))
        given = {"input_ids": tokens}
        if mask:
            given["attention_mask"] = torch.ones_like(tokens)
        if labels:
            given["labels"] = tokens.clone()
        return given

    return made


def _pixels(size, **more):
    return lambda: {"pixel_values": torch.randn(2, 3, size, size), **{k: make() for k, make in more.items()}}


_SMALL = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
_CAUSAL = dict(_SMALL, num_key_value_heads=2, vocab_size=100, use_cache=False, pad_token_id=0)
_SPEECH = dict(
    _SMALL,
    conv_dim=(16, 16, 16),
    conv_kernel=(10, 3, 2),
    conv_stride=(5, 2, 2),
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    vocab_size=32,
    apply_spec_augment=False,
    layerdrop=0.0,
    mask_time_prob=0.0,
)
_WAVE = lambda: {"input_values": torch.randn(2, 1600)}

MODELS = {
    "lstm_tagger": _own(Tagger, lambda: (torch.randint(0, 50, (2, 9)),)),
    "gru_translator": _own(Translator, lambda: (torch.randint(0, 30, (2, 7)), torch.randint(0, 30, (2, 5)))),
    "unet": _own(UNet, lambda: (torch.randn(2, 3, 44, 36),)),
    "diffusion_unet": _own(
        DiffusionUNet, lambda: (torch.randn(2, 3, 16, 16), torch.tensor([3.0, 500.0]), torch.randn(2, 7, 12))
    ),
    "diffusion_transformer": _own(
        DiffusionTransformer, lambda: (torch.randn(2, 3, 16, 16), torch.tensor([3.0, 500.0]), torch.tensor([1, 7]))
    ),
    "wavenet": _own(Wavenet, lambda: (torch.randn(2, 1, 64),)),
    "fpn_resnet18": _torchvision(
        lambda m: m.detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, trainable_layers=5, norm_layer=nn.BatchNorm2d
        )
    ),
    "fcos_resnet50_backbone": _torchvision(
        lambda m: m.detection.fcos_resnet50_fpn(weights=None, weights_backbone=None).backbone
    ),
    "ssdlite320_backbone": _torchvision(
        lambda m: m.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None).backbone, 320
    ),
    "deeplabv3_mobilenet_v3_large": _torchvision(
        lambda m: m.segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    ),
    "fcn_resnet50": _torchvision(
        lambda m: m.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=5)
    ),
    "lraspp_mobilenet_v3_large": _torchvision(
        lambda m: m.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5)
    ),
    "inception_v3": _torchvision(lambda m: m.inception_v3(weights=None, init_weights=False, aux_logits=False), 96),
    "Qwen2MoeForCausalLM": _transformers(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        _text(),
        **_CAUSAL,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=48
    ),
    "OlmoeForCausalLM": _transformers(
        "OlmoeForCausalLM", "OlmoeConfig", _text(), **_CAUSAL, num_experts=4, num_experts_per_tok=2
    ),
    "DeepseekV3ForCausalLM": _transformers(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        _text(),
        **dict(_CAUSAL, num_key_value_heads=4),
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=1
    ),
    "Mamba2ForCausalLM": _transformers(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        _text(mask=False),
        hidden_size=64,
        num_hidden_layers=2,
        vocab_size=100,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=2,
        chunk_size=8,
        use_cache=False,
    ),
    "Wav2Vec2ForCTC": _transformers("Wav2Vec2Model", "Wav2Vec2Config", _WAVE, **_SPEECH),
    "Wav2Vec2ConformerModel": _transformers(
        "Wav2Vec2ConformerModel",
        "Wav2Vec2ConformerConfig",
        _WAVE,
        **dict(_SPEECH, conv_depthwise_kernel_size=7),
        position_embeddings_type="relative"
    ),
    "WhisperForConditionalGeneration": _transformers(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        lambda: {"input_features": torch.randn(2, 16, 40), "labels": torch.randint(3, 100, (2, 6))},
        vocab_size=100,
        num_mel_bins=16,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=20,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        dropout=0.0,
    ),
    "T5ForConditionalGeneration": _transformers(
        "T5ForConditionalGeneration",
        "T5Config",
        _text(),
        vocab_size=100,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        use_cache=False,
        dropout_rate=0.0,
    ),
    "BartForConditionalGeneration": _transformers(
        "BartForConditionalGeneration",
        "BartConfig",
        _text(),
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        dropout=0.0,
    ),
    "DistilBertForMaskedLM": _transformers(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        _text(),
        vocab_size=100,
        dim=32,
        hidden_dim=64,
        n_layers=2,
        n_heads=4,
        max_position_embeddings=32,
        dropout=0.0,
        attention_dropout=0.0,
    ),
    "AlbertForMaskedLM": _transformers(
        "AlbertForMaskedLM",
        "AlbertConfig",
        _text(),
        **_SMALL,
        vocab_size=100,
        embedding_size=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0
    ),
    "DebertaV2ForMaskedLM": _transformers(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        _text(),
        **_SMALL,
        vocab_size=100,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0
    ),
    "BloomForCausalLM": _transformers(
        "BloomForCausalLM",
        "BloomConfig",
        _text(),
        vocab_size=100,
        hidden_size=64,
        n_layer=2,
        n_head=4,
        use_cache=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    ),
    "ViTMAEForPreTraining": _transformers(
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        _pixels(32, noise=lambda: torch.rand(2, 16)),
        **_SMALL,
        image_size=32,
        patch_size=8,
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=64
    ),
    "CLIPModel": _transformers(
        "CLIPModel",
        "CLIPConfig",
        lambda: {**_text(labels=False)(), **_pixels(32)()},
        text_config=dict(_SMALL, vocab_size=100, max_position_embeddings=16, eos_token_id=2),
        vision_config=dict(_SMALL, image_size=32, patch_size=8),
        projection_dim=24,
    ),
    "SegformerForSemanticSegmentation": _transformers(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        _pixels(64, labels=lambda: torch.randint(0, 5, (2, 64, 64))),
        num_labels=5,
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 24, 32],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=16,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    ),
    "Dinov2Model": _transformers(
        "Dinov2Model",
        "Dinov2Config",
        _pixels(48),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
    ),
    "efficientvit_b0": _timm("efficientvit_b0"),
    "fastvit_t8": _timm("fastvit_t8"),
    "resnest14d": _timm("resnest14d"),
    "xcit_nano_12_p16_224": _timm("xcit_nano_12_p16_224"),
}
