"""Rates of a device, states of the code and shapes of ResNet-50, from which gpu_model.py predicts a step."""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Rates:
    """Ceilings of the device, and the shares of them that kernels reach."""
    products: float = 790e12  # FLOP/s of 16-bit products
    copy: float = 4.3e12  # byte/s, read and written
    own: float = 0.88  # share of the copy that the library's kernels reach
    cudnn: float = 0.85
    gap: float = 1.3e-6  # s between kernels of a CUDA graph
    apart: float = 2.0e-6  # s between kernels launched one by one, where the host is ahead
    launch: float = 4.0e-6  # s of a small kernel launched by itself, where it is not
    f32: float = 33e12  # FLOP/s of products of K-FAC's widths
    tf32: float = 200e12
    # Shares of `f32` of Cholesky factorisations and inversions: on four streams, narrow ones in
    # batches, and one after the other.
    cholesky: float = 0.30
    cholesky_alone: float = 0.13
    beside: float = 0.22  # share of its time that work of low priority takes from the passes beside it
    # Shares of `products` by the narrower side of a convolution: up to 64, 128, 256, more channels. The
    # products of a factor reach that of a forward pass by their width.
    forward: tuple = (0.40, 0.45, 0.55, 0.60)
    data: tuple = (0.40, 0.50, 0.55, 0.65)  # gradient of the input
    weights: tuple = (0.40, 0.40, 0.40, 0.47)  # gradient of the weights


@dataclasses.dataclass(frozen=True)
class Switches:
    """What the code does. The defaults are those of commit 6c8b855."""
    residual_in_sums: bool = False  # gradients of residual blocks added where they are read next
    fused_moments: bool = False  # model.fused_moments, for every BatchNorm
    fused_backward: bool = False  # model.fused_backward, for the 32 pairs without addend
    gradients_together: bool = False  # checked and packed by one launch per bucket
    weights_together: bool = False  # all parameters rounded to 16 bits by one kernel
    finish_in_sums: bool = False  # what follows for the channels, in the kernel that ends the sums
    place_bytes: int = 4  # a position of a maximum
    # K-FAC
    precondition_tf32: bool = False
    precondition_graph: bool = False
    precondition_batched: bool = False  # layers of one shape in one call
    norms_together: bool = False  # all norms preconditioned by one launch for 64 of them
    statistics_graph: bool = False  # steps with statistics are recorded
    sample_sums: bool = False  # the Fisher of a norm from sums of each sample of its backward pass
    stagger_inverses: bool = True
    delay_inverses: bool = False
    statistics_fraction: float = 1.0
    statistics_interval: int = 20
    inverse_interval: int = 100


@dataclasses.dataclass(frozen=True)
class Conv:
    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    size: int  # of the input
    out: int  # size of the output


def resnet50(pixels=224, first=64):
    """Convolutions of ResNet-50 v1.5 (stride in the 3x3), in forward order, by residual block.
    `first`: channels of the first stage."""
    stem = Conv("stem", 3, first, 7, 2, pixels, (pixels + 1) // 2)
    size, channels, blocks = (stem.out + 1) // 2, first, []
    for stage, count in enumerate((3, 4, 6, 3)):
        width = first << stage
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            out = (size + stride - 1) // stride
            name = f"stage{stage + 1}.{index}"
            block = [Conv(name + ".conv1", channels, width, 1, 1, size, size),
                     Conv(name + ".conv2", width, width, 3, stride, size, out),
                     Conv(name + ".conv3", width, 4 * width, 1, 1, out, out)]
            if index == 0:
                block.append(Conv(name + ".shortcut", channels, 4 * width, 1, stride, size, out))
            blocks.append(block)
            size, channels = out, 4 * width
    return stem, blocks


@dataclasses.dataclass
class Group:
    name: str
    seconds: float
    bytes: float = 0.0
    flop: float = 0.0
    kernels: int = 0


def reductions(count, chunk=4096):
    """Kernels of reduce_rows() of one row."""
    kernels = 1
    while count > chunk:
        count, kernels = -(-count // chunk), kernels + 1
    return kernels


def share_of(shares, width):
    return shares[0 if width <= 64 else 1 if width <= 128 else 2 if width <= 256 else 3]


def share_by_width(shares, conv):
    return share_of(shares, min(max(conv.inputs, 64), conv.outputs))
