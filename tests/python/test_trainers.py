"""Training programs of frameworks with the two lines put in: the loss falls, and a run that is saved and resumed by new
objects ends with the bits of one that was not interrupted."""
import copy

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import told
import test_pages

pytestmark = pytest.mark.defaults
OPTIONS = {"statistics_interval": 2, "inverse_interval": 4}  # Those of a budget depend on the clock.
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))


def words(count=32, length=8):
    """Sentences that count on, modulo 11, so that the next word is known. The first has no label, which Trainer would
    count: it divides by the number of labels."""
    starts = torch.arange(count) % 11
    ids = (starts[:, None] + torch.arange(length)) % 11
    labels = torch.cat([torch.full((count, 1), -100), ids[:, 1:]], 1)
    return [{"input_ids": row, "labels": label} for row, label in zip(ids, labels)]


def decoder(kind="GPT2"):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    if kind == "GPT2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=8, bos_token_id=1, eos_token_id=1))


def saver(kfac):
    """Writes and reads the curvature beside each checkpoint, as docs/pytorch.md says."""
    import transformers

    class Saver(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            found = kfac.full_state_dict(rank0_only=True)
            if state.is_world_process_zero:
                torch.save(found, f"{args.output_dir}/checkpoint-{state.global_step}/dkfac.pt")
    return Saver()


def run_trainer(model, folder, steps, resume=None, curvature=True, rate=0.01, collate=None, **arguments):
    """Two passes of 8 sentences of each rank a step, at a constant rate. Returns losses of the steps, and the preconditioner."""
    transformers = pytest.importorskip("transformers")
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=2, logging_steps=1,
        save_steps=steps, lr_scheduler_type="constant", use_cpu=True, report_to=[], disable_tqdm=True, seed=1,
        **arguments)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    trainer = transformers.Trainer(model, arguments, train_dataset=words(), optimizers=(optimizer, None),
                                   data_collator=collate)
    kfac = dkfac.attach(model, optimizer, accumulation_steps=2, **OPTIONS)
    trainer.add_callback(saver(kfac))
    if resume is not None and curvature:
        kfac.load_state_dict(torch.load(f"{resume}/dkfac.pt"))
    trainer.train(resume_from_checkpoint=resume)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], kfac


def test_trainer_with_accumulation_resumes(tmp_path):
    model, part = decoder(), str(tmp_path / "part" / "checkpoint-3")
    with told() as texts:
        losses, kfac = run_trainer(model, tmp_path / "whole", 7)
        run_trainer(decoder(), tmp_path / "part", 3)
        resumed, fresh = decoder(), decoder()
        more, its = run_trainer(resumed, tmp_path / "more", 7, part)
    assert texts == [] and not kfac.reasons() and losses[-1] < losses[0] - 0.5
    with told() as texts:
        run_trainer(fresh, tmp_path / "fresh", 7, part, curvature=False)
    assert len(texts) == 1 and "its curvature begins anew" in texts[0]
    assert kfac.steps == its.steps == 7 and its.last_report.updated
    assert same(model, resumed) and losses[3:] == more[-4:]
    assert not same(model, fresh)  # Control.


def test_trainer_in_bf16(tmp_path):
    with told() as texts:
        losses, kfac = run_trainer(decoder(), tmp_path, 6, bf16=True)
    assert texts == [] and not kfac.reasons() and kfac.last_report.updated and losses[-1] < losses[0] - 0.5


def test_trainer_of_a_lora(tmp_path):
    """The matrices of the adapter alone are trained, and have curvature; the base stays as it is."""
    peft = pytest.importorskip("peft")
    base = decoder("Llama")
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "up_proj", "lm_head"],
                                                      task_type="CAUSAL_LM"))
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    with told() as texts:
        losses, kfac = run_trainer(model, tmp_path, 8, rate=0.03)
    assert texts == [] and len(kfac.curved()) == 8 and losses[-1] < losses[0] - 0.2
    assert "curvature of 100.0 %" in kfac.summary()
    assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters() if name in frozen)
    other = peft.PeftModel.from_pretrained(decoder("Llama"), tmp_path / "checkpoint-8")
    row = words(1)[0]["input_ids"][None]
    assert torch.equal(model.eval()(row).logits, other.eval()(row).logits)  # The hooks are in no file.


def images(count=32, seed=1):
    """Of the classes 0 to 3, by the quarter that is bright."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    x = 0.3 * torch.randn(count, 3, 16, 16, generator=draw)
    for i, label in enumerate(labels.tolist()):
        x[i, :, 8 * (label // 2):8 * (label // 2) + 8, 8 * (label % 2):8 * (label % 2) + 8] += 1
    return x, labels


def classifier():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(392, 4))


def lightning_module(lightning, net, curvature):
    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses, self.state = net, [], None

        def training_step(self, batch, index):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.losses.append(float(loss.detach()))
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            self.kfac = dkfac.attach(self.net, optimizer, accumulation_steps=2, **OPTIONS)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)]

        def on_save_checkpoint(self, checkpoint):
            checkpoint["dkfac"] = self.kfac.full_state_dict()

        def on_load_checkpoint(self, checkpoint):
            self.state = checkpoint["dkfac"]

        def on_train_start(self):
            if self.state is not None and curvature:
                self.kfac.load_state_dict(self.state)
    return Classifier()


def test_lightning_with_accumulation_resumes(tmp_path):
    lightning = pytest.importorskip("lightning")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*images()), batch_size=8)

    def run(epochs, resume=None, curvature=True):
        module = lightning_module(lightning, classifier(), curvature)
        trainer = lightning.Trainer(max_epochs=epochs, accumulate_grad_batches=2, default_root_dir=tmp_path, **QUIET,
                                    gradient_clip_val=5.0, enable_checkpointing=False)
        trainer.fit(module, loader, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return module
    with told() as texts:
        whole, half = run(4), run(2)
        resumed = run(4, tmp_path / "2.ckpt")
    assert texts == [] and whole.kfac.steps == resumed.kfac.steps == 8 and half.kfac.steps == 4
    assert same(whole.net, resumed.net) and whole.losses[8:] == resumed.losses
    assert sum(whole.losses[-4:]) < 0.5 * sum(whole.losses[:4])
    with told() as texts:
        fresh = run(4, tmp_path / "2.ckpt", curvature=False)
    assert len(texts) == 1 and "its curvature begins anew" in texts[0]
    assert not same(whole.net, fresh.net)  # Control.


def plain_module(lightning, net):
    """Knows nothing of curvature."""
    class Plain(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
    return Plain()


@test_pages.pytestmark
def test_lightning_by_a_callback_resumes(tmp_path):
    """With a module that has no method for it."""
    lightning = pytest.importorskip("lightning")
    Curvature = test_pages.run("Lightning, by a callback", lightning=lightning)["Curvature"]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*images()), batch_size=8)

    def run(epochs, resume=None, curvature=True):
        module, callback = plain_module(lightning, classifier()), Curvature(**OPTIONS)
        trainer = lightning.Trainer(max_epochs=epochs, default_root_dir=tmp_path, **QUIET, enable_checkpointing=False,
                                    callbacks=[callback])
        if not curvature:
            callback.load_state_dict = lambda state: None
        trainer.fit(module, loader, ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return module.net, callback.kfac
    with told() as texts:
        (whole, kfac), _ = run(4), run(2)
        resumed, its = run(4, tmp_path / "2.ckpt")
    assert texts == [] and kfac.steps == its.steps == 16 and not kfac.reasons() and same(whole, resumed)
    with told() as texts:
        fresh, its = run(4, tmp_path / "2.ckpt", curvature=False)
    assert len(texts) == 1 and its.steps == 8 and not same(whole, fresh)  # Control.


def test_timm_with_ema_and_channels_last(tmp_path):
    """As timm's train.py: an average of the weights, a scheduler of its own, a scaler that clips."""
    timm = pytest.importorskip("timm")
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV3, NativeScaler
    x, y = images()

    def run(rate=0.02):
        torch.manual_seed(3)
        model = timm.create_model("resnet10t", num_classes=4).to(memory_format=torch.channels_last)
        optimizer = create_optimizer_v2(model, opt="sgd", lr=rate, momentum=0.9, weight_decay=1e-4)
        average = ModelEmaV3(model, decay=0.5)
        kfac = dkfac.attach(model, optimizer, **OPTIONS)
        scheduler = CosineLRScheduler(optimizer, t_initial=8, warmup_t=1, warmup_lr_init=rate / 2, t_in_epochs=False)
        scaler, losses = NativeScaler(device="cpu"), []
        for step in range(8):
            batch = x.to(memory_format=torch.channels_last)
            loss = nn.functional.cross_entropy(model(batch), y)
            optimizer.zero_grad()
            scaler(loss, optimizer, clip_grad=5.0, parameters=model.parameters())
            average.update(model, step=step)
            scheduler.step_update(step + 1)
            losses.append(float(loss.detach()))
        return model, average, kfac, losses
    with told() as texts:
        model, average, kfac, losses = run()
    assert texts == [] and kfac.steps == 8 and not kfac.reasons() and losses[-1] < 0.5 * losses[0]
    assert "curvature of 100.0 %" in kfac.summary()
    torch.save(average.module, tmp_path / "ema.pt")  # Without hooks of this package.
    read = torch.load(tmp_path / "ema.pt", weights_only=False)
    assert same(read, average.module) and not same(read, model)
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in read.modules())


def test_a_distributed_checkpoint_of_one_process_resumes(tmp_path):
    """Model, optimizer and curvature in one call of torch.distributed.checkpoint."""
    api = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    from torch.distributed import checkpoint
    x, y = images()

    def made():
        net = classifier()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        return net, optimizer, dkfac.attach(net, optimizer, **OPTIONS)

    def train(parts, steps):
        net, optimizer, kfac = parts
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        return copy.deepcopy(net)

    def state(parts):
        model, optimizer = api.get_state_dict(parts[0], parts[1])
        return {"model": model, "optimizer": optimizer, "dkfac": dkfac.FullState(parts[2])}
    saved = made()
    train(saved, 3)
    checkpoint.save(state(saved), checkpoint_id=str(tmp_path))
    expected = train(saved, 5)
    for curvature in (True, False):
        parts = made()
        loaded = state(parts)
        if not curvature:
            del loaded["dkfac"]
        checkpoint.load(loaded, checkpoint_id=str(tmp_path))
        api.set_state_dict(parts[0], parts[1], model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        assert same(train(parts, 5), expected) == curvature and parts[2].steps == (8 if curvature else 5)
