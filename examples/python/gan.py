# SPDX-License-Identifier: Apache-2.0
"""Trains a GAN on MNIST (Goodfellow et al., 2014): two models against each other, and
a classifier that says how good the images are.

python3 gan.py --epochs 20 --image digits.pgm
"""

import numpy as np

from choir import autograd, data, layer, model, opt, tensor
from common import MNIST, open_device, parse_flags

NOISE, PIXELS = 100, 28 * 28


class MLP(model.Model):
    def __init__(self, hidden_size, out):
        super().__init__()
        self.fc1, self.fc2 = layer.Linear(hidden_size), layer.Linear(out)

    def forward(self, x):
        return self.fc2(autograd.relu(self.fc1(autograd.flatten(x))))


class Discriminator(MLP):
    """Its sigmoid is the probability that an image is a real one."""

    def loss(self, x, real):
        """real: 1 if the images are to be taken for real ones, or 0."""
        p = autograd.sigmoid(self.forward(x))
        target = tensor.zeros(p.shape, x.device) + real
        return autograd.binary_cross_entropy(p, target)

    def train_one_batch(self, x, generated):
        loss = self.loss(x, 1) + self.loss(generated, 0)
        self.optimizer(loss)
        return loss


class Generator(MLP):
    """Images, made of noise. It learns to have them taken for real ones: gradients
    come through the discriminator, which is not trained meanwhile."""

    def __init__(self, hidden_size, discriminator):
        super().__init__(hidden_size, PIXELS)
        self.discriminator = discriminator

    def forward(self, x):
        return autograd.sigmoid(super().forward(x))

    def train_one_batch(self, x):
        loss = self.discriminator.loss(self.forward(x), 1)
        self.optimizer(loss)
        return loss


class Classifier(MLP):
    def train_one_batch(self, x, y):
        self.optimizer(autograd.softmax_cross_entropy(self.forward(x), y))

    def score(self, images):
        """The inception score (Salimans et al., 2016): 1 where all images look alike
        or like no digit, 10 where each is one for sure and all are as frequent.
        """
        odds = tensor.softmax(self(images)).numpy() + 1e-12
        surprise = odds * np.log(odds / odds.mean(axis=0))
        return np.exp(surprise.sum(axis=1).mean())


def set_trained(m, is_trained):
    """Whether steps from now on change m's parameters."""
    for parameter in m.get_states().values():
        parameter.stores_grad = is_trained


def main(o):
    dev = open_device(o, 0)
    dev.SetRandSeed(o.seed)
    train = data.mnist(o.data, "train", o.limit)
    test = data.mnist(o.data, "test", 1000)
    batches = data.Loader(train, o.batch_size, device=dev, seed=o.seed)
    c, d = Classifier(o.hidden_size, 10), Discriminator(o.hidden_size, 1)
    g = Generator(o.hidden_size, d)
    for m, size in ((c, PIXELS), (d, PIXELS), (g, NOISE)):
        m.set_optimizer(opt.Adam(o.lr, beta_1=0.5))
        m.compile([tensor.Tensor((1, size), dev)], use_graph=True)

    def noise(count):
        return tensor.Tensor((count, NOISE), dev).uniform(-1, 1)

    def generate(count):
        with autograd.no_grad():
            return g.forward(noise(count))

    for batch in batches:
        c(*batch)
    c.eval()
    for x, _ in data.Loader(test, len(test), device=dev):
        print("Real images: score = %.2f" % c.score(x), flush=True)
    for epoch in range(o.epochs):
        losses = np.zeros(2)
        for x, _ in batches:
            set_trained(d, True)
            d_loss = d(x, generate(len(x)))
            set_trained(d, False)
            losses += d_loss.item(), g(noise(len(x))).item()
        score = c.score(generate(1000))
        print(REPORT % (epoch, *losses / len(batches), score), flush=True)
    if o.image:  # 10 x 10 of them, as a portable graymap
        grid = generate(100).numpy().reshape(10, 10, 28, 28).swapaxes(1, 2)
        with open(o.image, "wb") as file:
            file.write(b"P5 280 280 255\n" + np.uint8(grid * 255).tobytes())


REPORT = (
    "Epoch %d: discriminator's loss = %.4f, generator's = %.4f, score = %.2f"
)
if __name__ == "__main__":
    flags = dict(epochs=20, batch_size=64, hidden_size=128, lr=1e-3)
    flags.update(seed=0, limit=0, data=MNIST, image="")
    main(parse_flags("Trains a GAN on MNIST.", **flags))
