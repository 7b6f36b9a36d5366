"""The models of clients.py: {name: (package, function that returns (model, batch, loss of model and batch))}."""
import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, LENGTH, BATCH = 96, 12, 4


def tokens(length=LENGTH):
    return torch.randint(3, VOCABULARY, (BATCH, length))


def labels(count=5):
    return torch.arange(BATCH) % count


def of_output(model, batch):
    return model(**batch).loss


def transformer(kind, config, batch, **values):
    """A model of transformers of a class and a configuration, whose output has the loss."""
    def make():
        import transformers
        settings = getattr(transformers, config)(**values)
        model = getattr(transformers, kind)(settings).train()
        return model, batch(), of_output
    return make


def causal():
    ids = tokens()
    return {"input_ids": ids, "labels": ids}


def pairs():
    return {"input_ids": tokens(), "labels": tokens(8)}


def classified():
    return {"input_ids": tokens(), "labels": labels(2)}


def pictures(size=32):
    return lambda: {"pixel_values": torch.randn(BATCH, 3, size, size), "labels": labels(2)}


SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = {**SIZES, "intermediate_size": 48, "max_position_embeddings": 32}
DECODER = {**ENCODER, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {**DECODER, "num_experts_per_tok": 2}
VISION = {"image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 48}
SEQ2SEQ = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
           "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
           "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
           "decoder_start_token_id": 1}


def speech():
    return {"input_features": torch.randn(BATCH, 16, 40), "labels": tokens(8)}


def waves():
    return {"input_values": torch.randn(BATCH, 2000), "labels": labels(2)}


def captions():
    return {"input_ids": tokens(), "pixel_values": torch.randn(BATCH, 3, 32, 32), "return_loss": True}


def clip():
    import transformers
    text = {**ENCODER, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)
    return transformers.CLIPModel(config).train(), captions(), of_output


def lora():
    import peft
    model, batch, loss = transformer("LlamaForCausalLM", "LlamaConfig", causal, **DECODER)()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model, config), batch, loss


def crossed(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def vision(name, size=32, **values):
    """A classifier of torchvision."""
    def make():
        import torchvision
        model = getattr(torchvision.models, name)(num_classes=5, **values).train()
        return model, (torch.randn(BATCH, 3, size, size), labels()), crossed
    return make


def tiny_vit():
    import torchvision
    model = torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32,
                                                 mlp_dim=48, num_classes=5)
    nn.init.normal_(model.heads.head.weight, std=0.1)
    return model, (torch.randn(BATCH, 3, 32, 32), labels()), crossed


def tiny_swin():
    import torchvision
    model = torchvision.models.SwinTransformer(patch_size=[2, 2], embed_dim=16, depths=[2, 2], num_heads=[2, 2],
                                               window_size=[4, 4], num_classes=5)
    return model, (torch.randn(BATCH, 3, 32, 32), labels()), crossed


def tiny_convnext():
    import torchvision
    from torchvision.models.convnext import CNBlockConfig
    model = torchvision.models.ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=5)
    return model, (torch.randn(BATCH, 3, 32, 32), labels()), crossed


def detection(name, **values):
    """Images are a list, of two sizes; its head is applied to each level of a pyramid of features."""
    def make():
        import torchvision
        torch.manual_seed(0)
        model = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, num_classes=5,
                                                            **values)
        boxes = torch.tensor([[5.0, 5, 40, 40], [10, 12, 50, 60]])
        targets = [{"boxes": boxes, "labels": torch.tensor([1, 2]),
                    "masks": torch.ones(2, 64, 64 + 8 * (i % 2), dtype=torch.uint8)} for i in range(BATCH)]
        batch = [torch.rand(3, 64, 64 + 8 * (i % 2)) for i in range(BATCH)], targets
        return model.train(), batch, lambda model, batch: sum(model(*batch).values())
    return make


def video():
    import torchvision
    model = torchvision.models.video.VideoResNet(
        torchvision.models.video.resnet.BasicBlock, [torchvision.models.video.resnet.Conv3DSimple] * 4, [1, 1, 1, 1],
        torchvision.models.video.resnet.BasicStem, num_classes=5)
    for part in ("layer3", "layer4"):
        setattr(model, part, nn.Identity())
    model.fc = nn.Linear(128, 5)
    return model, (torch.randn(BATCH, 3, 4, 16, 16), labels()), crossed


def timm_model(name, size=32, **values):
    def make():
        import timm
        return timm.create_model(name, num_classes=5, **values).train(), (
            torch.randn(BATCH, 3, size, size), labels()), crossed
    return make


class Recurrent(nn.Module):
    """A language model of an LSTM, a GRU or an RNN."""

    def __init__(self, kind, tied=False, **values):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        self.core = kind(16, 16, batch_first=True, **values)
        self.head = nn.Linear(16 * (2 if values.get("bidirectional") else 1), VOCABULARY)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.core(self.table(x))[0])


def language(model, batch):
    return F.cross_entropy(model(batch).flatten(0, 1), batch.roll(-1, 1).flatten())


def recurrent(kind, **values):
    return lambda: (Recurrent(kind, **values), tokens(), language)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(),
                                  nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.InstanceNorm2d(8, affine=True), nn.PReLU(),
                                nn.Conv2d(8, 3, 3, padding=1))

    def forward(self, x):
        return self.up(self.down(x))


def restored(model, x):
    return (model(x) - x).pow(2).mean()


def transformer_of_torch():
    model = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
    return model, (torch.randn(BATCH, 6, 16), torch.randn(BATCH, 5, 16)), (
        lambda m, b: (m(*b) - b[1].flip(1)).pow(2).mean())


class Crossing(nn.Module):
    """Attention over keys and values of other sizes."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, kdim=12, vdim=8, batch_first=True)
        self.norm = nn.LayerNorm(16, bias=False) if hasattr(nn, "RMSNorm") else nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.attention(x, x[..., :12], x[..., :8], need_weights=False)[0])


def crossing():
    return Crossing(), torch.randn(BATCH, 6, 16), restored


HF = "transformers"
MODELS = {
    "GPT-2": (HF, transformer("GPT2LMHeadModel", "GPT2Config", causal, vocab_size=VOCABULARY, n_embd=32, n_layer=2,
                              n_head=4, n_positions=32, bos_token_id=1, eos_token_id=2)),
    "GPT-Neo": (HF, transformer("GPTNeoForCausalLM", "GPTNeoConfig", causal, vocab_size=VOCABULARY, hidden_size=32,
                                num_layers=2, num_heads=4, max_position_embeddings=32,
                                attention_types=[[["global", "local"], 1]], bos_token_id=1, eos_token_id=2)),
    "GPT-NeoX": (HF, transformer("GPTNeoXForCausalLM", "GPTNeoXConfig", causal, **ENCODER)),
    "OPT": (HF, transformer("OPTForCausalLM", "OPTConfig", causal, **SIZES, ffn_dim=48, word_embed_proj_dim=32,
                            max_position_embeddings=32)),
    "BLOOM": (HF, transformer("BloomForCausalLM", "BloomConfig", causal, vocab_size=VOCABULARY, hidden_size=32,
                              n_layer=2, n_head=4)),
    "Llama": (HF, transformer("LlamaForCausalLM", "LlamaConfig", causal, **DECODER)),
    "Llama, tied": (HF, transformer("LlamaForCausalLM", "LlamaConfig", causal, **DECODER, tie_word_embeddings=True)),
    "Mistral": (HF, transformer("MistralForCausalLM", "MistralConfig", causal, **DECODER)),
    "Qwen2": (HF, transformer("Qwen2ForCausalLM", "Qwen2Config", causal, **DECODER)),
    "Qwen3": (HF, transformer("Qwen3ForCausalLM", "Qwen3Config", causal, **DECODER, head_dim=8)),
    "Gemma 2": (HF, transformer("Gemma2ForCausalLM", "Gemma2Config", causal, **DECODER, head_dim=8)),
    "Phi-3": (HF, transformer("Phi3ForCausalLM", "Phi3Config", causal, **DECODER)),
    "OLMo 2": (HF, transformer("Olmo2ForCausalLM", "Olmo2Config", causal, **DECODER)),
    "Mixtral": (HF, transformer("MixtralForCausalLM", "MixtralConfig", causal, **EXPERTS, num_local_experts=4)),
    "Qwen3 MoE": (HF, transformer("Qwen3MoeForCausalLM", "Qwen3MoeConfig", causal, **EXPERTS, num_experts=4, head_dim=8,
                                  moe_intermediate_size=16)),
    "Mamba": (HF, transformer("MambaForCausalLM", "MambaConfig", causal, vocab_size=VOCABULARY, hidden_size=32,
                              num_hidden_layers=2, state_size=4, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
    "T5": (HF, transformer("T5ForConditionalGeneration", "T5Config", pairs, vocab_size=VOCABULARY, d_model=32, d_kv=8,
                           d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0)),
    "BART": (HF, transformer("BartForConditionalGeneration", "BartConfig", pairs, **SEQ2SEQ)),
    "Marian": (HF, transformer("MarianMTModel", "MarianConfig", pairs, **SEQ2SEQ)),
    "BERT, masked words": (HF, transformer("BertForMaskedLM", "BertConfig", causal, **ENCODER)),
    "BERT, classification": (HF, transformer("BertForSequenceClassification", "BertConfig", classified, **ENCODER)),
    "RoBERTa": (HF, transformer("RobertaForMaskedLM", "RobertaConfig", causal, **ENCODER, pad_token_id=0)),
    "DistilBERT": (HF, transformer("DistilBertForSequenceClassification", "DistilBertConfig", classified,
                                   vocab_size=VOCABULARY, dim=32, n_layers=2, n_heads=4, hidden_dim=48,
                                   max_position_embeddings=32)),
    "ELECTRA": (HF, transformer("ElectraForSequenceClassification", "ElectraConfig", classified, **ENCODER,
                                embedding_size=16)),
    "ALBERT": (HF, transformer("AlbertForMaskedLM", "AlbertConfig", causal, **ENCODER, embedding_size=16)),
    "DeBERTa v2": (HF, transformer("DebertaV2ForSequenceClassification", "DebertaV2Config", classified, **ENCODER)),
    "ModernBERT": (HF, transformer("ModernBertForMaskedLM", "ModernBertConfig", causal, **ENCODER, pad_token_id=0,
                                   bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)),
    "ViT": (HF, transformer("ViTForImageClassification", "ViTConfig", pictures(), **VISION)),
    "DeiT": (HF, transformer("DeiTForImageClassification", "DeiTConfig", pictures(), **VISION)),
    "BEiT": (HF, transformer("BeitForImageClassification", "BeitConfig", pictures(), **VISION)),
    "DINOv2": (HF, transformer("Dinov2ForImageClassification", "Dinov2Config", pictures(), **VISION)),
    "ConvNeXt v2": (HF, transformer("ConvNextV2ForImageClassification", "ConvNextV2Config", pictures(),
                                    hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 1, 1])),
    "SegFormer": (HF, transformer("SegformerForImageClassification", "SegformerConfig", pictures(64),
                                  hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 4])),
    "CLIP": (HF, clip),
    "Whisper": (HF, transformer("WhisperForConditionalGeneration", "WhisperConfig", speech, vocab_size=VOCABULARY,
                                d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                                decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=16,
                                max_source_positions=20, max_target_positions=10, pad_token_id=0, bos_token_id=1,
                                eos_token_id=2, decoder_start_token_id=1, suppress_tokens=[],
                                begin_suppress_tokens=[])),
    "wav2vec 2": (HF, transformer("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", waves, **SIZES,
                                  intermediate_size=48, conv_dim=[16] * 3, conv_kernel=[10, 3, 3],
                                  conv_stride=[5, 4, 4], num_feat_extract_layers=3, num_conv_pos_embeddings=8,
                                  num_conv_pos_embedding_groups=4, mask_time_prob=0.0)),
    "PEFT LoRA on Llama": ("peft", lora),
    "torchvision ResNet-18": ("torchvision", vision("resnet18")),
    "torchvision VGG-11 BN": ("torchvision", vision("vgg11_bn")),
    "torchvision MobileNet v3": ("torchvision", vision("mobilenet_v3_small")),
    "torchvision EfficientNet B0": ("torchvision", vision("efficientnet_b0")),
    "torchvision ShuffleNet v2": ("torchvision", vision("shufflenet_v2_x0_5")),
    "torchvision RegNet": ("torchvision", vision("regnet_y_400mf")),
    "torchvision ViT": ("torchvision", tiny_vit),
    "torchvision Swin": ("torchvision", tiny_swin),
    "torchvision ConvNeXt": ("torchvision", tiny_convnext),
    "torchvision video ResNet": ("torchvision", video),
    "torchvision Faster R-CNN": ("torchvision", detection("fasterrcnn_mobilenet_v3_large_fpn", min_size=64, max_size=96)),
    "torchvision Mask R-CNN": ("torchvision", detection("maskrcnn_resnet50_fpn", min_size=64, max_size=96)),
    "torchvision RetinaNet": ("torchvision", detection("retinanet_resnet50_fpn", min_size=64, max_size=96)),
    "torchvision FCOS": ("torchvision", detection("fcos_resnet50_fpn", min_size=64, max_size=96)),
    "torchvision SSDlite": ("torchvision", detection("ssdlite320_mobilenet_v3_large")),
    "timm ViT": ("timm", timm_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=48)),
    "timm Mixer": ("timm", timm_model("mixer_s32_224", img_size=64, size=64)),
    "timm ConvNeXt v2": ("timm", timm_model("convnextv2_atto", dims=(8, 16, 24, 32), depths=(1, 1, 1, 1))),
    "timm EVA-02": ("timm", timm_model("eva02_tiny_patch14_224", img_size=28, size=28, depth=2, embed_dim=48,
                                       num_heads=4)),
    "timm CaiT": ("timm", timm_model("cait_xxs24_224", img_size=32, depth=2, embed_dim=48)),
    "LSTM": ("torch", recurrent(nn.LSTM)),
    "LSTM, two layers, both directions": ("torch", recurrent(nn.LSTM, num_layers=2, bidirectional=True)),
    "GRU": ("torch", recurrent(nn.GRU)),
    "nn.Transformer": ("torch", transformer_of_torch),
    "MultiheadAttention with kdim, vdim": ("torch", crossing),
    "U-Net": ("torch", lambda: (UNet(), torch.randn(BATCH, 3, 16, 16), restored)),
}
