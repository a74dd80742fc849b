#!/usr/bin/env python3
"""delay_skew.py FOLDER [--steps N] [--seeds 1,2]: why delayed averaging, like FedAvg, loses
accuracy when workers have different classes, and what does not help. It uses Fashion-MNIST from
its idx files in FOLDER, four workers with shares drawn from Dirichlet(0.3), and the perceptron
of `--model mlp`. This is a simulation: all workers of all variants run in one process as one
batched product, with torch alone and none of thinwire's code. So it can do what no real worker
can: compute a gradient at the current mean of the models. It takes half a minute on an H200. It
also runs without a GPU, but slowly.
"""

import argparse, math, os
import numpy, torch

PARSER = argparse.ArgumentParser()
PARSER.add_argument("folder")
PARSER.add_argument("--steps", type=int, default=1500)
PARSER.add_argument("--seeds", default="1,2")
OPTIONS = PARSER.parse_args()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKERS, BATCH, RATE, MOMENTUM, STEPS = 4, 32, 0.1, 0.5, OPTIONS.steps
SHAPES = [(784, 300), (300,), (300, 300), (300,), (300, 10), (10,)]
SIZE = sum(math.prod(shape) for shape in SHAPES)


def idx(name):
    with open(os.path.join(OPTIONS.folder, name), "rb") as file:
        content = file.read()
    shape = [
        int.from_bytes(content[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(content[3])
    ]
    return (
        torch.from_numpy(numpy.frombuffer(content, numpy.uint8, offset=4 + 4 * content[3]).copy())
        .reshape(shape)
        .to(DEVICE)
    )


IMAGES, TEST_IMAGES = (
    idx(f"{part}-images-idx3-ubyte").float().reshape(-1, 784) / 255 for part in ("train", "t10k")
)
LABELS, TEST_LABELS = (idx(f"{part}-labels-idx1-ubyte").long() for part in ("train", "t10k"))
MEAN, DEVIATION = IMAGES.mean(), IMAGES.std()
IMAGES, TEST_IMAGES = (IMAGES - MEAN) / DEVIATION, (TEST_IMAGES - MEAN) / DEVIATION


def initial(seed):
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for shape in SHAPES:
        fan = shape[0] if len(shape) == 2 else fan
        parts.append((torch.rand(shape, generator=generator) * 2 - 1).reshape(-1) / math.sqrt(fan))
    return torch.cat(parts).to(DEVICE)


def logits(weights, images):
    """weights [models, SIZE], images [models, batch, 784]"""
    parts = [
        part.reshape(-1, *shape)
        for part, shape in zip(weights.split([math.prod(s) for s in SHAPES], 1), SHAPES)
    ]
    hidden = torch.relu(torch.baddbmm(parts[1][:, None], images, parts[0]))
    hidden = torch.relu(torch.baddbmm(parts[3][:, None], hidden, parts[2]))
    return torch.baddbmm(parts[5][:, None], hidden, parts[4])


def batches(seed):
    """The images of each worker in each step [STEPS, WORKERS, BATCH], and the logarithm of each
    worker's class shares."""
    random = numpy.random.default_rng(seed + 77)
    labels = LABELS.cpu().numpy()
    owned = [[] for _ in range(WORKERS)]
    for label in range(10):
        images = random.permutation(numpy.where(labels == label)[0])
        cuts = (numpy.cumsum(random.dirichlet([0.3] * WORKERS))[:-1] * len(images)).astype(int)
        for worker, part in enumerate(numpy.split(images, cuts)):
            owned[worker].append(part)
    counts = torch.tensor([[len(part) + 1e-3 for part in parts] for parts in owned], device=DEVICE)
    order = numpy.empty((STEPS, WORKERS, BATCH), numpy.int64)
    for worker, parts in enumerate(owned):
        images = numpy.concatenate(parts)
        epochs = [random.permutation(images) for _ in range(STEPS * BATCH // len(images) + 1)]
        order[:, worker] = numpy.concatenate(epochs)[: STEPS * BATCH].reshape(STEPS, BATCH)
    return torch.from_numpy(order).to(DEVICE), torch.log(counts / counts.sum(1, keepdim=True))


def rate(step):
    warm = STEPS // 10
    return RATE * (
        (step + 1) / warm
        if step < warm
        else 0.5 * (1 + math.cos(math.pi * (step - warm) / (STEPS - warm)))
    )


def mean(rows):
    return rows.mean(0, keepdim=True).expand_as(rows)


class Synchronous:
    def __init__(self, at_mean=False, frequencies=False):
        self.at_mean, self.frequencies = (
            at_mean,
            frequencies,
        )  # gradients at the mean model; the loss knows the class shares
        self.momentum = torch.zeros(WORKERS, SIZE, device=DEVICE)

    def step(self, step, weights, gradients):
        self.momentum = MOMENTUM * self.momentum + mean(gradients)
        return weights - rate(step) * self.momentum

    def anchor(self, weights):
        return weights.mean(0)


class FedAvg(Synchronous):
    """With `control`, SCAFFOLD: subtracts the mean difference between a worker's gradients and
    everybody's in earlier rounds."""

    def __init__(self, local, control=False, **common):
        super().__init__(**common)
        self.local, self.control = local, control
        self.seen, self.drift = torch.zeros_like(self.momentum), torch.zeros_like(self.momentum)

    def step(self, step, weights, gradients):
        self.seen += gradients
        self.momentum = MOMENTUM * self.momentum + gradients - self.drift
        weights = weights - rate(step) * self.momentum
        if (step + 1) % self.local == 0:
            weights = mean(weights)
            if self.control:
                self.momentum = mean(self.momentum)
                self.drift += 0.2 * ((self.seen - mean(self.seen)) / self.local - self.drift)
            self.seen.zero_()
        return weights


class Delayed(Synchronous):
    """`soft` with a fixed share. With `memory`, a worker subtracts `part` of its drift
    from its own updates at once. The drift is the mean difference between its gradients
    and everybody's, in the rounds that have arrived. After the fraction `until` of the
    training it is synchronous."""

    def __init__(self, delay, share=0.5, memory=0, part=1, until=1, **common):
        super().__init__(**common)
        self.delay, self.share, self.memory, self.part, self.until = (
            delay,
            share,
            memory,
            part,
            until * STEPS,
        )
        self.pace = min(2 / delay, (1 - MOMENTUM) / 2)
        self.due, self.drift, self.driven = (torch.zeros_like(self.momentum) for _ in range(3))
        self.under_way = []

    def step(self, step, weights, gradients):
        if step >= self.until:
            if self.under_way:
                weights, self.momentum = (
                    self.anchor(weights).expand_as(weights),
                    mean(self.momentum),
                )
                self.under_way = []
            return super().step(step, weights, gradients)
        self.momentum = MOMENTUM * self.momentum + gradients
        self.driven = MOMENTUM * self.driven + self.part * self.drift
        made = -self.share * rate(step) * (self.momentum - self.driven)
        weights = weights + made
        self.under_way.append((-rate(step) * self.momentum, made, gradients))
        if len(self.under_way) > self.delay:
            update, made, gradients = self.under_way.pop(0)
            self.due += mean(update) - made
            if self.memory:
                self.drift += max(1 / self.memory, 1 / (step + 1)) * (
                    gradients - mean(gradients) - self.drift
                )
        weights = weights + self.pace * self.due
        self.due *= 1 - self.pace
        return weights

    def anchor(self, weights):
        return (
            weights + self.due + sum(update - made for update, made, _ in self.under_way)
            if self.under_way
            else weights
        ).mean(0)


VARIANTS = {
    "synchronous": lambda: Synchronous(),
    "synchronous, frequencies told": lambda: Synchronous(frequencies=True),
}
for K in (2, 3, 5, 20):
    VARIANTS[f"FedAvg, K = {K}"] = lambda K=K: FedAvg(K)
for K in (5, 20):
    VARIANTS[f"FedAvg, K = {K}, control"] = lambda K=K: FedAvg(K, control=True)
for D in (1, 2, 5, 20):
    VARIANTS[f"delayed, D = {D}"] = lambda D=D: Delayed(D)
for D in (5, 20):
    VARIANTS[f"delayed, D = {D}, gradients at the mean"] = lambda D=D: Delayed(D, at_mean=True)
    VARIANTS[f"delayed, D = {D}, frequencies told"] = lambda D=D: Delayed(D, frequencies=True)
    VARIANTS[f"delayed, D = {D}, share 0.35"] = lambda D=D: Delayed(D, share=0.35)
    VARIANTS[f"delayed, D = {D}, share 1"] = lambda D=D: Delayed(D, share=1)
    for until in (0.95, 0.9, 0.5):
        VARIANTS[f"delayed, D = {D}, synchronous from {until}"] = lambda D=D, until=until: Delayed(
            D, until=until
        )
    for memory in (3, 20, 100):
        for part in (0.5, 1):
            VARIANTS[f"delayed, D = {D}, control, memory {memory}, part {part}"] = (
                lambda D=D, memory=memory, part=part: Delayed(D, memory=memory, part=part)
            )


def train(seed):
    """The accuracy of every variant, all at once."""
    methods = [make() for make in VARIANTS.values()]
    order, frequencies = batches(seed)
    offsets = torch.stack([frequencies * method.frequencies for method in methods])
    weights = initial(seed).expand(len(methods), WORKERS, SIZE).clone()
    for step in range(STEPS):
        points = torch.stack(
            [mean(own) if method.at_mean else own for own, method in zip(weights, methods)]
        ).requires_grad_()
        images = IMAGES[order[step]].repeat(len(methods), 1, 1)
        guesses = logits(points.flatten(0, 1), images) + offsets.flatten(0, 1)[:, None]
        losses = torch.nn.functional.cross_entropy(
            guesses.flatten(0, 1),
            LABELS[order[step]].repeat(len(methods), 1).flatten(),
            reduction="none",
        )
        (gradients,) = torch.autograd.grad(losses.sum() / BATCH, points)
        for own, method, gradient in zip(weights, methods, gradients):
            own.copy_(method.step(step, own.clone(), gradient))
    return [
        100
        * (logits(method.anchor(own)[None], TEST_IMAGES[None])[0].argmax(1) == TEST_LABELS)
        .float()
        .mean()
        .item()
        for own, method in zip(weights, methods)
    ]


seeds = [int(seed) for seed in OPTIONS.seeds.split(",")]
results = numpy.array([train(seed) for seed in seeds])
print(f"{'accuracy, mean of the seeds':48}{'':>8}   against synchronous   each seed")
for name, scores in zip(VARIANTS, results.T):
    print(
        f"{name:48}{scores.mean():8.2f}{scores.mean() - results[:, 0].mean():+22.2f}   "
        f"{' '.join(f'{score:.2f}' for score in scores)}"
    )
