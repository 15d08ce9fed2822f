"""The models that ./dev import-check exports: random weights, small inputs, nothing fetched."""

import importlib

import torch


def _vision(name, size=64, **options):
    def make():
        import torchvision

        if name == "googlenet":  # a tuple with names, which the archive has to know
            tuple_of = importlib.import_module("torchvision.models.googlenet").GoogLeNetOutputs
            torch.utils._pytree._register_namedtuple(tuple_of, serialized_type_name="torchvision.GoogLeNetOutputs")
        return getattr(torchvision.models, name)(weights=None, **options), (torch.randn(2, 3, size, size),), {}

    return make


def _timm(name, size=None):
    def make():
        import timm

        model = timm.create_model(name, pretrained=False)
        side = size or model.default_cfg["input_size"][-1]
        return model, (torch.randn(2, 3, side, side),), {}

    return make


def _transformers(name, configuration, **options):
    def make():
        import transformers

        config = getattr(transformers, configuration)(**options)
        model = getattr(transformers, name)(config)
        tokens = torch.randint(0, config.vocab_size, (2, 12))
        labels = torch.randint(0, 2, (2,)) if "Classification" in name else tokens
        given = {"input_ids": tokens, "labels": labels}
        if "Mamba" not in name:
            given["attention_mask"] = torch.ones_like(tokens)
        return model, (), given

    return make


_SMALL = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100, use_cache=False
)
_LLAMA = dict(_SMALL, num_key_value_heads=2)

MODELS = {
    "alexnet": _vision("alexnet"),
    "vgg11_bn": _vision("vgg11_bn", 32),
    "resnet18": _vision("resnet18"),
    "resnet50": _vision("resnet50"),
    "densenet121": _vision("densenet121"),
    "mobilenet_v2": _vision("mobilenet_v2"),
    "mobilenet_v3_small": _vision("mobilenet_v3_small"),
    "efficientnet_b0": _vision("efficientnet_b0"),
    "shufflenet_v2_x0_5": _vision("shufflenet_v2_x0_5"),
    "squeezenet1_0": _vision("squeezenet1_0"),
    "mnasnet0_5": _vision("mnasnet0_5"),
    "regnet_y_400mf": _vision("regnet_y_400mf"),
    "googlenet": _vision("googlenet", 96, init_weights=False),
    "convnext_tiny": _vision("convnext_tiny"),
    "vit_b_16": _vision("vit_b_16", 224),
    "swin_t": _vision("swin_t"),
    "maxvit_t": _vision("maxvit_t", 224),
    "vit_tiny_patch16_224": _timm("vit_tiny_patch16_224"),
    "deit3_small_patch16_224": _timm("deit3_small_patch16_224"),
    "convnextv2_atto": _timm("convnextv2_atto", 64),
    "mixer_s32_224": _timm("mixer_s32_224"),
    "resmlp_12_224": _timm("resmlp_12_224"),
    "swinv2_tiny_window8_256": _timm("swinv2_tiny_window8_256"),
    "efficientformerv2_s0": _timm("efficientformerv2_s0"),
    "edgenext_xx_small": _timm("edgenext_xx_small", 64),
    "mobilevit_xxs": _timm("mobilevit_xxs", 64),
    "levit_128s": _timm("levit_128s"),
    "poolformer_s12": _timm("poolformer_s12", 64),
    "eva02_tiny_patch14_224": _timm("eva02_tiny_patch14_224"),
    "ghostnet_050": _timm("ghostnet_050", 64),
    "repvgg_a0": _timm("repvgg_a0", 64),
    "nfnet_f0": _timm("nfnet_f0", 64),
    "hrnet_w18_small": _timm("hrnet_w18_small", 64),
    "coatnet_nano_rw_224": _timm("coatnet_nano_rw_224"),
    "GPT2LMHeadModel": _transformers(
        "GPT2LMHeadModel", "GPT2Config", n_embd=64, n_layer=2, n_head=4, vocab_size=100, n_positions=32, use_cache=False
    ),
    "BertForSequenceClassification": _transformers("BertForSequenceClassification", "BertConfig", **_SMALL),
    "LlamaForCausalLM": _transformers("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
    "Qwen3ForCausalLM": _transformers("Qwen3ForCausalLM", "Qwen3Config", head_dim=16, **_LLAMA),
    "GemmaForCausalLM": _transformers("GemmaForCausalLM", "GemmaConfig", head_dim=16, **_LLAMA),
    "MixtralForCausalLM": _transformers("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **_LLAMA),
    "MambaForCausalLM": _transformers(
        "MambaForCausalLM", "MambaConfig", hidden_size=64, num_hidden_layers=2, vocab_size=100, use_cache=False
    ),
}


def without_randomness(model):
    """Dropout of every kind with probability 0, so that two implementations can be compared."""
    for module in model.modules():
        for name in (
            "p",
            "drop_prob",
            "dropout",
            "attention_dropout",
            "dropout_prob",
            "drop_rate",
            "stochastic_depth_prob",
        ):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model
