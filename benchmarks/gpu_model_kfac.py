"""The work of K-FAC in gpu_model.py: launches, operations and bytes of the calls of the device code, from
the shapes of the layers.

The choices here are those of the library (src/core/cuda/patch_cost.h, gram_functors.h, offset_functors.h,
patch_gram.cu; src/nn/backends/cuda/columns.h; src/kfac/inverse/cuda/refresh.cu; src/kfac/precondition/directions.cpp);
check_gpu_model.py compares what follows from them with steps on the emulated device, which reduces a row
or column in one launch (`whole`).
"""
import dataclasses
import math

from gpu_model_shapes import Group, Rates, reductions, resnet50, share_of

MIB = 1 << 20


def round_up(value, unit):
    return -(-value // unit) * unit


@dataclasses.dataclass
class Call:
    """A call of cuBLAS or cuSOLVER: a product, unless it is named."""
    flop: float
    bytes: float
    name: str = "cublas"


class Tally:
    """Adds up one group: calls of libraries, which take the longer of operations and bytes, and
    kernels of the library, which take their bytes."""

    def __init__(self, name, rates, whole=False):
        self.rates, self.whole = rates, whole
        self.group = Group(name, 0.0)

    def call(self, call, rate):
        self.group.seconds += max(call.flop / rate, call.bytes / (self.rates.copy * self.rates.cudnn))
        self.group.flop += call.flop
        self.group.bytes += call.bytes
        self.group.kernels += 1

    def kernels(self, count, moved=0):
        self.group.kernels += count
        self.group.bytes += moved
        self.group.seconds += moved / (self.rates.copy * self.rates.own)

    def reduce(self, length, moved=0, chunk=4096):
        self.kernels(1 if self.whole else reductions(length, chunk), moved)


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution, or the classifier, with the widths of its factors."""
    conv: object  # None: the classifier
    a: int
    g: int
    has_bias: bool = False


def layers_of(pixels, first):
    stem, blocks = resnet50(pixels, first)
    convs = [stem] + [conv for block in blocks for conv in block]
    layers = [Layer(c, c.inputs * c.kernel**2, c.outputs) for c in convs]
    return layers + [Layer(None, 4 * blocks[-1][0].outputs + 1, 1000, True)]


# --- statistics ------------------------------------------------------------------------------------


def row_groups(rows, m, n):
    """row_groups(): rounds, groups, rows of a group, rest."""
    tiles = math.ceil(m / 128) * math.ceil(n / 128)
    groups = min(max(128 // tiles, 1), max(1, rows // 512))
    rounds = math.ceil(rows / (groups * 16384))
    per = rows // (groups * rounds)
    return rounds, groups, per, rows - rounds * groups * per


def rate_of(rates, width):
    return rates.products * share_of(rates.forward, width)


def tall_product(rows, m, n, products, sums):
    """a'b of 16-bit a[rows,m] and b[rows,n]."""
    rate = rate_of(products.rates, max(m, n))
    rounds, groups, per, rest = row_groups(rows, m, n)
    for _ in range(rounds):
        products.call(Call(2 * groups * per * m * n, groups * (2 * per * (m + n) + 4 * m * n)), rate)
    if rest:
        products.call(Call(2 * rest * m * n, 2 * rest * (m + n) + 4 * m * n), rate)
    sums.kernels(1, 4 * (groups + 1) * m * n)


def triangle(width):
    """Panels of the lower triangle, (first row, rows): narrow ones are computed whole."""
    step = width if width < 1024 else 512
    return [(first, min(step, width - first)) for first in range(0, width, step)]


def gram(rows, width, products, sums):
    for first, count in triangle(width):
        if first:
            tall_product(rows, count, first, products, sums)
        tall_product(rows, count, count, products, sums)


def prefers_offsets(conv, batch):
    """Whether 13 products of the padded image are cheaper than those of patches."""
    if conv.kernel != 3 or conv.stride != 1:
        return False
    width, side = round_up(conv.inputs, 64), conv.size + 2
    offsets = width**2 * (13 * batch * side**2 + 12 * batch * side + 4 * batch)
    panels = sum(round_up(count, 64) * round_up(first + count, 64)
                 for first, count in triangle(9 * conv.inputs))
    return offsets < batch * conv.out**2 * panels


def offset_gram(conv, batch, products, sums):
    channels, side = conv.inputs, conv.size + 2
    rate = rate_of(products.rates, channels)
    pixels, across = side**2, math.ceil(channels / 128)
    groups = max(1, 128 // across**2)
    most = min(max(min(256 * MIB // (2 * pixels * channels), groups * max(1, 16384 // pixels)), 1), batch)
    rounds = math.ceil(batch / most)
    in_round = math.ceil(batch / rounds)
    per = math.ceil(in_round / groups)
    groups = math.ceil(in_round / per)
    images = groups * per
    # Image, border lines by two and corners by four: (products, lines, rows of a group).
    kinds = ((13, 1, per * pixels), (3, 2, per * side), (3, 2, per * side), (1, 4, per))
    for _ in range(rounds):
        sums.kernels(4, 2 * channels * images * (conv.size**2 + pixels + 4 * side + 8))
        for count, lines, rows in kinds:
            for _ in range(count):
                products.call(Call(2 * lines * groups * rows * channels**2,
                                   lines * groups * (4 * rows * channels + 4 * channels**2)), rate)
    sums.kernels(2, 4 * channels**2 * (29 * groups + 2 * 29) + 4 * 81 * channels**2)


def patch_gram(conv, batch, products, sums):
    rows, width = batch * conv.out**2, conv.inputs * conv.kernel**2
    most = max(1, 256 * MIB // (2 * round_up(width, 8)))
    step = math.ceil(rows / math.ceil(rows / most))
    read = 2 * batch * conv.inputs * (conv.out if conv.kernel == 1 else conv.size)**2
    for first in range(0, rows, step):
        panel = min(step, rows - first)
        sums.kernels(1, read * panel / rows + 2 * panel * width)
        gram(panel, width, products, sums)


def add_factor_a(layer, batch, products, sums):
    conv = layer.conv
    if conv is None:
        gram(batch, layer.a - 1, products, sums)
        sums.reduce(batch, chunk=512)  # The row of the bias, and its corner.
        sums.kernels(1)
    elif conv.kernel == 1 and conv.stride == 1:
        gram(batch * conv.out**2, conv.inputs, products, sums)
    elif prefers_offsets(conv, batch):
        offset_gram(conv, batch, products, sums)
    else:
        patch_gram(conv, batch, products, sums)


def sample_chunks(conv, batch):
    """ColumnBlocks::parts() of the positions of each sample: partial sums of one channel."""
    packs = conv.outputs // 8
    tiles = math.ceil(packs / 32)
    depth, run = 256 // math.ceil(packs / tiles), 64
    while True:
        chunks = math.ceil(conv.out**2 / (depth * run))
        if run == 16 or batch * chunks * tiles >= 1024:
            return chunks
        run //= 2


def add_sums_of_samples(conv, batch, tally):
    """Beyond the sums over the batch: those of each sample, in f32, are written and read. Two kernels as
    there, or one more that adds up partial sums."""
    chunks = sample_chunks(conv, batch)
    tally.kernels(1 if chunks > 1 else 0,
                  batch * conv.outputs * (2 * 8 + (2 * 16 * chunks if chunks > 1 else 0)))


def statistics(switches, rates, batch, pixels, first, whole=False):
    """Groups of a step that refreshes all statistics."""
    layers = layers_of(pixels, first)
    stem, blocks = resnet50(pixels, first)
    # Norms whose gradients a convolution has summed over the batch.
    paired = [c for b in blocks for c in b[:2]] if switches.fused_backward else []
    samples = max(1, math.ceil(switches.statistics_fraction * batch))
    a, g, sums, ranges, fisher, of_samples, packing, checks, averages = (
        Tally(name, rates, whole) for name in (
            "products of A", "products of G", "patches and sums", "ranges of operands",
            "Fisher of the norms", "sums of each sample", "packing", "checks", "averages"))
    masked = Tally("masked gradients", rates)
    for layer in layers:
        conv = layer.conv
        add_factor_a(layer, samples, a, sums)
        positions = conv.out**2 if conv else 1
        gram(samples * positions, layer.g, g, sums)
        inputs = samples * (conv.size**2 * conv.inputs if conv else layer.a - 1)
        for width, elements in ((layer.a, inputs), (layer.g, samples * positions * layer.g)):
            ranges.reduce(math.ceil(elements / 8), 2 * elements)
            packing.reduce(width * (width + 1) // 2, 4 * width**2)
            checks.kernels(1)  # The range is finite.
            checks.reduce(width)  # So is the diagonal of the sum over ranks.
            averages.kernels(1, 6 * width**2)
        if conv is None:
            continue
        if switches.sample_sums and conv not in paired:
            add_sums_of_samples(conv, batch, of_samples)
            fisher.reduce(samples, 8 * samples * conv.outputs, chunk=512)
        else:
            fisher.reduce(positions, 4 * samples * positions * conv.outputs, chunk=512)
            fisher.reduce(samples, 16 * samples * conv.outputs, chunk=512)
        checks.reduce(3 * conv.outputs)
        checks.reduce(3 * conv.outputs)
        averages.kernels(1, 36 * conv.outputs)
    # Without a recording, gradients are packed as they come.
    one_by_one = Tally("gradients one by one", rates, whole)
    if switches.gradients_together and not switches.statistics_graph:
        sizes = [n for layer in layers for n in (
            (layer.a * layer.g, layer.g, layer.g) if layer.conv else ((layer.a - 1) * layer.g, layer.g))]
        for size in sizes:
            one_by_one.reduce(size)
        one_by_one.kernels(-1 if whole else -reductions(sum(sizes)))
        one_by_one.kernels(-1)
    # A normalisation with ReLU and without an addend stores its masked gradient for its Fisher, unless
    # a convolution has computed it, or its own pass the sums.
    stored = [c for c in [stem] + [c for b in blocks for c in b[:2]]
              if c not in paired and not switches.sample_sums]
    masked.kernels(0, 2 * batch * sum(c.out**2 * c.outputs for c in stored))
    return [t.group for t in (a, g, sums, ranges, fisher, of_samples, masked, packing, checks, averages,
                              one_by_one)]


# --- inverses --------------------------------------------------------------------------------------


def add_job(width, count, rate, cholesky, check):
    """Inverts `count` factors of one width together."""
    square, cube = 4 * count * width**2, count * width**3
    check.kernels(count)  # Descriptions of the factors.
    check.kernels(1, 1.5 * square)
    if count == 1:
        cholesky.call(Call(cube / 3, square, "cusolver potrf"), rate)
        cholesky.call(Call(2 * cube / 3, square, "cusolver potri"), rate)
    else:
        cholesky.call(Call(cube / 3, square, "cusolver potrf batched"), rate)
        cholesky.call(Call(cube, 2 * square, "cublas trsm batched"), rate)
        cholesky.call(Call(2 * cube, 3 * square), rate)
        check.kernels(3)  # Addresses.
        check.kernels(2, 2 * square)  # Identity, and the upper triangle.
    check.reduce(width)  # Pivots.
    for _ in range(3):  # Products of a symmetric matrix and two vectors, in two halves.
        check.reduce(width, square / 2)
        check.reduce(width, square / 2, chunk=512)
    check.reduce(width)  # Their norms.
    check.kernels(2, 2 * square)  # The new inverse, lower and upper triangle.


def inverses(switches, rates, pixels, first, whole=False):
    """Groups of the rebuild of all inverses, in one step or staggered over many."""
    layers = layers_of(pixels, first)
    widths = sorted([w for layer in layers for w in (layer.a, layer.g)], reverse=True)
    damping, cholesky, check = (Tally(name, rates, whole) for name in (
        "damping", "Cholesky", "checks of inverses"))
    for layer in layers:
        damping.reduce(layer.a)
        damping.reduce(layer.g)
        damping.kernels(1)
    rate = rates.f32 * (rates.cholesky_alone if switches.stagger_inverses else rates.cholesky)
    while widths:
        width = widths[0]
        most = 64 * MIB // (4 * width**2) if width <= 512 and not switches.stagger_inverses else 1
        count = min(widths.count(width), most)
        add_job(width, count, rate, cholesky, check)
        del widths[:count]
    return [t.group for t in (damping, cholesky, check)]


# --- preconditioning -------------------------------------------------------------------------------


def batches(layers, together):
    """form_batches(): layers of one shape, of at most 2^23 elements: (layer, how many)."""
    found = []
    for layer in layers:
        shape, size = (layer.g, layer.a, layer.has_bias), layer.g * layer.a
        batch = next((b for b in found if together and b["shape"] == shape and b["room"] >= size), None)
        if batch is None:
            found.append({"shape": shape, "room": (1 << 23) - size, "layer": layer, "count": 1})
        else:
            batch["room"] -= size
            batch["count"] += 1
    return [(b["layer"], b["count"]) for b in found]


def preconditioning(switches, rates, pixels, first):
    """Groups of every step."""
    layers = layers_of(pixels, first)
    products, norms, flags = (Tally(name, rates) for name in (
        "preconditioning", "preconditioning of norms", "flags of K-FAC"))
    flags.kernels(3)
    rate = rates.tf32 if switches.precondition_tf32 else rates.f32
    for layer, count in batches(layers, switches.precondition_batched):
        a, g = layer.a, layer.g
        for columns in (a - 1, 1) if layer.has_bias else (a,):
            products.call(Call(2 * count * g * g * columns, 4 * count * (g * g + 2 * g * columns)), rate)
        for columns in (a - 1, 1) if layer.has_bias else (a,):
            products.call(Call(2 * count * g * a * columns,
                               4 * count * (g * a + a * columns + g * columns)), rate)
    channels = [layer.g for layer in layers if layer.conv]
    norms.kernels(math.ceil(len(channels) / (64 if switches.norms_together else 1)), 28 * sum(channels))
    return [t.group for t in (products, norms, flags)]


# --- a step ----------------------------------------------------------------------------------------


def kfac_events(switches, rates=Rates(), batch=256, pixels=224, first=64, passes=0):
    """What K-FAC adds to a step of SGD, by event, as it costs where the event occurs: `every step`,
    `statistics`, `inverses`. `passes`: kernels of forward and backward pass, which are launched one by
    one in steps with statistics unless those are recorded."""
    always = preconditioning(switches, rates, pixels, first)
    for group in always:
        group.seconds += group.kernels * (rates.gap if switches.precondition_graph else rates.launch)
    refresh = statistics(switches, rates, batch, pixels, first)
    apart = rates.gap if switches.statistics_graph else rates.apart
    refresh.append(Group("passes not recorded", passes * (apart - rates.gap)))
    for group in refresh:  # Averages follow the flags, where the host is not ahead.
        group.seconds += group.kernels * (rates.launch if group.name == "averages" else apart)
    rebuild = inverses(switches, rates, pixels, first)
    for group in rebuild:  # The others are launched beside long ones.
        group.seconds += group.kernels * (rates.launch if group.name == "damping" else 0)
    return {"every step": always, "statistics": refresh, "inverses": rebuild}


def kfac_step(switches, sgd_seconds, passes, rates=Rates(), batch=256, pixels=224, first=64):
    """Mean additional time of a step of K-FAC, by group."""
    events = kfac_events(switches, rates, batch, pixels, first, passes)
    intervals = {"every step": 1, "statistics": switches.statistics_interval,
                 "inverses": switches.inverse_interval}
    if switches.delay_inverses:
        # They run beside the passes of the next step, at whose end the host waits for the rest.
        full = sum(g.seconds for g in events["inverses"])
        hidden = min(full, sgd_seconds)
        events["inverses"].append(Group("hidden beside the next step", (rates.beside - 1) * hidden))
    return [dataclasses.replace(g, seconds=g.seconds / interval, bytes=g.bytes / interval,
                                flop=g.flop / interval, kernels=g.kernels / interval)
            for event, interval in intervals.items() for g in events[event]]
