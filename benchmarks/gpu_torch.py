#!/usr/bin/env python3
"""The work of bench_gpu_kfac in PyTorch on a CUDA device: the cost of a K-FAC written in Python.

Statistics use patches that are copied once and f16 products, with f32 results from PyTorch 2.8 on;
inverses use cholesky and cholesky_inverse in f32, one factor after the other; directions are two f32
products. Checks the diagonals of its statistics, and its inverses. Prints one JSON object with the
keys of bench_gpu_kfac. Usage: gpu_torch.py [--batch N] [--repeats N] [--layers resnet50|tiny] [--json FILE]
Exit code 77: no PyTorch, or no CUDA device.
"""
import argparse
import math
import statistics
import sys
import time

from gpu_torch_support import report, torch_on


def resnet50_layers(pixels):
    """(name, in, out, kernel, stride, image side) of every convolution; the classifier has side 0."""
    layers = [("stem", 3, 64, 7, 2, pixels)]
    side = (pixels // 2 + 1) // 2
    inputs = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            out = (side - 1) // stride + 1
            name = f"stage{stage + 1}.{block}"
            layers += [(name + ".conv1", inputs, width, 1, 1, side),
                       (name + ".conv2", width, width, 3, stride, side),
                       (name + ".conv3", width, 4 * width, 1, 1, out)]
            if block == 0:
                layers.append((name + ".shortcut", inputs, 4 * width, 1, stride, side))
            inputs, side = 4 * width, out
    return layers + [("fc", 2048, 1000, 1, 1, 0)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", choices=("resnet50", "tiny"), default="resnet50")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch = torch_on("cuda")
    if torch is None:
        return 77
    functional = torch.nn.functional

    def accepts_out_dtype():
        try:
            some = torch.ones(16, 16, device="cuda", dtype=torch.float16)
            return torch.mm(some, some, out_dtype=torch.float32).dtype == torch.float32
        except (TypeError, RuntimeError, NotImplementedError):
            return False

    f32_results = accepts_out_dtype()
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

    def patches_of(x, kernel, stride):
        """Rows of patches (kh, kw, c) of a channels-last image: one copy; none for 1x1, stride 1."""
        if kernel > 1:
            x = functional.pad(x, (kernel // 2,) * 4)
        views = x.unfold(2, kernel, stride).unfold(3, kernel, stride)
        return views.permute(0, 2, 3, 4, 5, 1).reshape(-1, kernel * kernel * x.shape[1])

    def gram(rows, count, largest):
        """rows' rows / count in f32 for f16 rows, without a pass over them; |result| <= largest.

        Where results are f16, the sum is scaled inside the product, by a power of two that brings
        `largest` to at most 2^14: it cannot overflow, and what is 2^-27 of it keeps all its digits.
        """
        if f32_results:
            return torch.mm(rows.t(), rows, out_dtype=torch.float32).div_(count)
        scale = 2.0 ** (14 - math.ceil(math.log2(count * largest)))
        # beta = 0: the first argument is not read. alpha is applied to the f32 sums.
        unread = torch.empty(1, 1, device="cuda", dtype=torch.float16)
        product = torch.addmm(unread, rows.t(), rows, beta=0, alpha=scale)
        return product.float().div_(scale * count)

    def median_ms(work):
        times = []
        for i in range(args.repeats + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            torch.cuda.synchronize()
            if i > 0:
                times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)

    layers = resnet50_layers(224 if args.layers == "resnet50" else 32)
    if args.layers == "tiny":
        layers = [layer for layer in layers if layer[0] == "stem" or layer[0].startswith("stage1.0")]
    torch.manual_seed(1)
    rows, factors = [], []
    for name, inputs, outputs, kernel, stride, side in layers:
        if side == 0:
            x = torch.randn(args.batch, inputs, device="cuda", dtype=torch.float16).relu_()
            dy = 0.1 * torch.randn(args.batch, outputs, device="cuda", dtype=torch.float16)

            def make_a():
                ones = torch.ones(args.batch, 1, device="cuda", dtype=torch.float16)
                rows_of = torch.cat((x, ones), 1)
                return gram(rows_of, args.batch, 4)

            def make_g():
                return gram(dy, args.batch, 1)

            squares_a = torch.cat((x.double().square().mean(0), torch.ones(1, device="cuda")))
        else:
            x = torch.randn(args.batch, inputs, side, side, device="cuda", dtype=torch.float16)
            x = x.relu_().to(memory_format=torch.channels_last)
            out = (side - 1) // stride + 1
            dy = 0.1 * torch.randn(args.batch, out, out, outputs, device="cuda", dtype=torch.float16)

            def make_a():
                patches = patches_of(x, kernel, stride)
                return gram(patches, patches.shape[0], 4)

            def make_g():
                return gram(dy.reshape(-1, outputs), args.batch, out * out)

            # Sums of squares over patches, computed from the sum over images: patches are linear.
            squares_a = patches_of(x.double().square().sum(0, keepdim=True), kernel, stride)
            squares_a = squares_a.sum(0) / (args.batch * out * out)
        squares_g = dy.double().square().reshape(-1, outputs).sum(0) / args.batch
        a, g = make_a(), make_g()
        # An f32 sum of millions of positive terms may lose a percent.
        for what, made, expected in (("A", a, squares_a), ("G", g, squares_g)):
            wrong = float((made.diagonal() - expected).abs().max() / expected.max())
            if not wrong < 2e-2:
                raise SystemExit(f"{what} of {name} is wrong by {wrong}")
        rows.append({"layer": name, "a_ms": median_ms(make_a), "g_ms": median_ms(make_g)})
        factors.append((a, g))
        del x, dy

    eye = {}

    def damped(matrix):
        n = matrix.shape[0]
        if n not in eye:
            eye[n] = torch.eye(n, device="cuda")
        return matrix + 1e-2 * eye[n]

    def invert():
        return [tuple(torch.cholesky_inverse(torch.linalg.cholesky(damped(m))) for m in pair)
                for pair in factors]

    inverses = invert()
    worst = max(float((damped(m) @ i - torch.eye(m.shape[0], device="cuda")).abs().max())
                for pair, inverted in zip(factors, inverses) for m, i in zip(pair, inverted))
    if not worst < 0.1:
        raise SystemExit(f"an inverse is wrong by {worst}")
    gradients = [1e-3 * torch.ones(g.shape[0], a.shape[0], device="cuda") for a, g in factors]

    def precondition():
        return [g @ dw @ a for (a, g), dw in zip(inverses, gradients)]

    a_ms, g_ms = sum(r["a_ms"] for r in rows), sum(r["g_ms"] for r in rows)
    result = {"what": f"PyTorch on {args.layers}", "version": torch.__version__,
              "device": torch.cuda.get_device_name(), "f32_results": f32_results,
              "batch": args.batch, "repeats": args.repeats,
              "a_ms": a_ms, "g_ms": g_ms, "statistics_ms": a_ms + g_ms,
              "inverse_ms": median_ms(invert), "plain_step_ms": median_ms(precondition),
              "layers": rows}
    report(result, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
