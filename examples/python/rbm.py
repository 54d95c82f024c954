# SPDX-License-Identifier: Apache-2.0
"""Trains a restricted Boltzmann machine on MNIST by contrastive divergence (Hinton,
2002): no loss and no backward, but gradients by hand.

python3 rbm.py --epochs 5
"""

from choir import data, opt, tensor
from common import MNIST, open_device, parse_flags


class RBM:
    """Pixels v and hidden units h are 0 or 1, v and h together with a probability in
    proportion to exp(v W h + v vb + h hb). So all h are independent given v, and
    all v given h."""

    def __init__(self, visible, hidden, dev):
        self.w = tensor.Tensor((visible, hidden), dev).gaussian(0.0, 0.1)
        self.vb = tensor.zeros((visible,), dev)
        self.hb = tensor.zeros((hidden,), dev)

    def hidden(self, v):
        """The probability that each hidden unit is 1."""
        return tensor.sigmoid(tensor.mult(v, self.w) + self.hb)

    def visible(self, h):
        """The probability that each pixel is 1."""
        return tensor.sigmoid(tensor.mult(h, self.w.T()) + self.vb)

    def gradients(self, v):
        """Of -log p(v), the mean over the batch, and the reconstruction of v.

        They are the mean of v h under the model less that under the data, of the
        biases of v and of h. The first one would take many rounds from h to v and
        back; contrastive divergence takes one, from the data.
        """
        h = self.hidden(v)
        sample = tensor.gt(h, tensor.random(h.shape, v.device))
        v_again = self.visible(sample)
        h_again = self.hidden(v_again)
        n = v.shape[0]
        w = tensor.mult(v_again.T(), h_again) - tensor.mult(v.T(), h)
        vb = tensor.sum(v_again - v, axis=0)
        hb = tensor.sum(h_again - h, axis=0)
        return {"w": w / n, "vb": vb / n, "hb": hb / n}, v_again


def error(v, v_again):
    """Squares of the differences, summed over the batch."""
    return tensor.sum(tensor.square(v - v_again)).item()


def flat(batch):
    return tensor.reshape(batch.x, (batch.sample_count, -1))


def main(o):
    dev = open_device(o, 0)
    dev.SetRandSeed(o.seed)
    train, test = (
        data.mnist(o.data, split, o.limit) for split in ("train", "test")
    )
    batches = data.Loader(train, o.batch_size, device=dev, seed=o.seed)
    others = data.Loader(test, o.batch_size, device=dev, shuffle=False)
    rbm = RBM(28 * 28, o.hidden_size, dev)
    sgd = opt.SGD(o.lr, momentum=o.momentum, weight_decay=o.weight_decay)
    for epoch in range(o.epochs):
        train_error = test_error = 0.0
        for batch in batches:
            v = flat(batch)
            gradients, v_again = rbm.gradients(v)
            for name, gradient in gradients.items():
                sgd.apply(name, getattr(rbm, name), gradient)
            sgd.step()
            train_error += error(v, v_again)
        for batch in others:
            v = flat(batch)
            test_error += error(v, rbm.visible(rbm.hidden(v)))
        found = train_error / len(train), test_error / len(test)
        print(REPORT % (epoch, *found), flush=True)


REPORT = "Epoch %d: training error = %.3f, test error = %.3f"
if __name__ == "__main__":
    flags = dict(epochs=10, batch_size=100, hidden_size=1000, lr=0.05)
    flags.update(momentum=0.9, weight_decay=2e-4, seed=0, limit=0, data=MNIST)
    main(
        parse_flags("Trains a restricted Boltzmann machine on MNIST.", **flags)
    )
