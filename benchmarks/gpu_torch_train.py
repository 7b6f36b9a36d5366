#!/usr/bin/env python3
"""SGD training steps of PyTorch on a CUDA device, for comparison with bench_gpu_train.

Channels last, automatic mixed precision (a loss scale for f16), PyTorch's fused SGD; once in eager
mode and once with torch.compile. One constant batch on the device. Checks that the loss falls. Prints
one JSON object. Usage: gpu_torch_train.py [--model resnet50|resnet9] [--batch N]
[--compute f16|bf16|f32] [--steps N] [--no-compile] [--json FILE]
Exit code 77: no PyTorch, or no CUDA device.
"""
import argparse
import sys
import time

from gpu_torch_support import report, torch_on


def resnet9(nn):
    """The network of `resnet9-plain`: Page, "How to train your ResNet", 2018, without its later tricks."""

    class Residual(nn.Module):
        def __init__(self, *body):
            super().__init__()
            self.body = nn.Sequential(*body)

        def forward(self, x):
            return x + self.body(x)

    def block(channels_in, channels_out, pool=False):
        parts = [nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
                 nn.BatchNorm2d(channels_out), nn.ReLU(inplace=True)]
        return parts + ([nn.MaxPool2d(2)] if pool else [])

    class Scale(nn.Module):
        def forward(self, x):
            return x * 0.125

    return nn.Sequential(*block(3, 64), *block(64, 128, True),
                         Residual(*block(128, 128), *block(128, 128)), *block(128, 256, True),
                         *block(256, 512, True), Residual(*block(512, 512), *block(512, 512)),
                         nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, 10, bias=False),
                         Scale())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("resnet50", "resnet9"), default="resnet50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--compute", choices=("f16", "bf16", "f32"), default="f16")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch = torch_on("cuda")
    if torch is None:
        return 77
    from torch import nn
    import torch_train

    torch.backends.cudnn.benchmark = True
    compute = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}[args.compute]
    classes, size = (1000, 224) if args.model == "resnet50" else (10, 32)

    def measure(compiled):
        torch.manual_seed(1)
        model = torch_train.resnet50(1000) if args.model == "resnet50" else resnet9(nn)
        model = model.cuda().to(memory_format=torch.channels_last)
        step_model = torch.compile(model) if compiled else model
        x = torch.rand(args.batch, 3, size, size, device="cuda") * 2 - 1
        x = x.to(memory_format=torch.channels_last)
        labels = torch.arange(args.batch, device="cuda") % classes
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
        scaler = torch.amp.GradScaler("cuda", enabled=args.compute == "f16")
        criterion = nn.CrossEntropyLoss()

        def step():
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=compute, enabled=args.compute != "f32"):
                loss = criterion(step_model(x), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        torch.cuda.reset_peak_memory_stats()
        first = float(step())
        for _ in range(5):
            step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(args.steps):
            last = step()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / args.steps
        if not float(last) < first:
            raise SystemExit(f"the loss went from {first} to {float(last)}; it has to fall")
        return {"sgd_step_ms": 1e3 * seconds, "sgd_images_per_s": args.batch / seconds,
                "peak_bytes": torch.cuda.max_memory_allocated()}

    result = {"what": f"PyTorch's training of {args.model}", "version": torch.__version__,
              "device": torch.cuda.get_device_name(), "batch": args.batch, "compute": args.compute,
              "eager": measure(False)}
    if not args.no_compile:
        try:
            result["compiled"] = measure(True)
        except Exception as error:  # Requirements of torch.compile (Triton, a compiler) may be absent.
            result["compiled"] = {"failed": str(error).splitlines()[0] if str(error) else repr(error)}
    report(result, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
