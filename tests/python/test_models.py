"""Models of torchvision and torch train unchanged, with curvature in every layer that has a block."""
import pytest
import torch
from torch import nn

import dkfac.torch as dkfac

torchvision = pytest.importorskip("torchvision")


def run(model, inputs, steps=2, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    kfac = dkfac.attach(model, optimizer, damping=0.1, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(inputs)
        nn.functional.cross_entropy(out.flatten(0, -2), torch.arange(out[..., 0].numel()) % out.shape[-1]).backward()
        raw = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    assert kfac.last_report.updated and kfac.last_report.layers_without_inverse == 0
    assert all(torch.isfinite(p).all() for p in model.parameters())
    changed = sum(not torch.equal(a, p.grad) for a, p in zip(raw, model.parameters()))
    return kfac, changed


@pytest.mark.parametrize("last", [False, True])
def test_resnet18(last):
    model, x = torchvision.models.resnet18(num_classes=5), torch.randn(4, 3, 32, 32)
    if last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    kfac, changed = run(model, x, inverse_interval=2)
    assert len(kfac.curved()) == 41 and not kfac.reasons()  # 20 convolutions, 20 normalisations, 1 linear layer
    assert changed == len(list(model.parameters()))
    convolutions = [layer for layer in kfac.layers if hasattr(layer, "one")]
    assert all(layer.nhwc for layer in convolutions) == last


def test_resnet50():
    kfac, _ = run(torchvision.models.resnet50(num_classes=5, width_per_group=8), torch.randn(2, 3, 32, 32), steps=1)
    assert len(kfac.curved()) == 107 and not kfac.reasons()


def test_vision_transformer():
    model = torchvision.models.VisionTransformer(image_size=16, patch_size=8, num_layers=2, num_heads=2,
                                                 hidden_dim=16, mlp_dim=32, num_classes=5)
    kfac, _ = run(model, torch.randn(3, 3, 16, 16))
    names = [layer.name for layer in kfac.curved()]
    for i in range(2):
        block = f"encoder.layers.encoder_layer_{i}."
        assert {block + "self_attention.in_proj", block + "self_attention.out_proj", block + "ln_1"} <= set(names)
    assert {"class_token", "encoder.pos_embedding"} <= set(names) and not kfac.reasons()


def test_swin_transformer():
    model = torchvision.models.SwinTransformer(patch_size=[2, 2], embed_dim=8, depths=[2], num_heads=[2],
                                               window_size=[2, 2], num_classes=5)
    kfac, _ = run(model, torch.randn(3, 3, 16, 16))
    assert any(layer.name.endswith("qkv") for layer in kfac.curved())
    assert any("relative_position_bias_table" in layer.name for layer in kfac.curved()) and not kfac.reasons()


@pytest.mark.parametrize("batch_first", [False, True])
def test_transformer_encoder(batch_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2)
    kfac, _ = run(model, torch.randn(3, 4, 8), batch_dim=0 if batch_first else 1)
    assert len(kfac.curved()) == 12 and not kfac.reasons()  # Two of in_proj, out_proj, 2 Linear, 2 LayerNorm


def test_transformer_decoder_uses_parts_of_the_projection():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, x):
            return self.layer(x, x.flip(1) * 0.5)
    kfac, _ = run(Decoder(), torch.randn(3, 4, 8))
    assert [n for n in (layer.name for layer in kfac.curved()) if "multihead_attn.in" in n] == [
        "layer.multihead_attn.in_proj[0:8]", "layer.multihead_attn.in_proj[8:24]"]
