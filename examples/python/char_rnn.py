# SPDX-License-Identifier: Apache-2.0
"""Trains an LSTM on the characters of a text, which then writes one.

python3 char_rnn.py --epochs 4
python3 -m choir -np 2 char_rnn.py --prompt "ROMEO:"
"""

import numpy as np

from choir import data, layer, model, opt, tensor
from common import SHAKESPEARE, open_device, parse_flags


class CharRNN(model.Model):
    """Scores of each character that may follow, as Karpathy's char-rnn."""

    def __init__(self, vocabulary, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = layer.Embedding(vocabulary, hidden_size)
        self.lstm = layer.LSTM(hidden_size, hidden_size, batch_first=True)
        self.dense = layer.Linear(vocabulary)
        self.softmax_cross_entropy = layer.SoftMaxCrossEntropy()

    def start(self, texts, dev):
        """The state before the first character of so many texts: zeros."""
        shape = texts, self.hidden_size
        return tensor.zeros(shape, dev), tensor.zeros(shape, dev)

    def forward(self, x, h, c):
        """x: the next characters of each text, (texts, length). The state (h, c) is
        all that is known of those before; that behind x comes back."""
        y, h, c = self.lstm(self.embedding(x), (h, c))
        return self.dense(y), h, c

    def train_one_batch(self, x, y, h, c):
        scores, next_h, next_c = self.forward(x, h, c)
        loss = self.softmax_cross_entropy(scores, y)
        self.optimizer(loss)
        # The next step begins where this one ended.
        h.copy_data(next_h)
        c.copy_data(next_c)
        return loss


def batches(ids, dev, length, texts, rank, size):
    """Cuts ids into texts of one length, so many for each worker, and gives this
    worker's part by part: x, (texts, length), and y, the same one character later.
    """
    columns = (len(ids) - 1) // (texts * size)
    if columns < length:
        raise ValueError(
            f"{len(ids)} characters are too few for {texts * size} texts of "
            f"{length} and one more"
        )
    first = np.arange(rank * texts, (rank + 1) * texts)[:, None] * columns
    for at in range(0, columns - length + 1, length):
        places = first + np.arange(at, at + length)
        yield [tensor.from_numpy(ids[places + i], dev) for i in (0, 1)]


def write(m, text, dev, prompt, count, seed):
    """Prints the prompt and `count` characters, each drawn by its scores."""
    m.eval()
    rng = np.random.default_rng(seed)
    ids = new = list(text.encode(prompt))
    h, c = m.start(1, dev)
    for _ in range(count):
        x = tensor.from_numpy(np.array([new], np.int32), dev)
        scores, h, c = m(x, h, c)
        odds = tensor.softmax(scores).numpy()[0, -1]
        new = [rng.choice(len(odds), p=odds)]
        ids = ids + new
    print(text.decode(ids))


def main(o):
    adam = opt.Adam(o.lr)
    adam.clip_gradients(norm=5)  # now and then an RNN's are huge
    adam = opt.DistOpt(adam)
    rank, size = adam.global_rank, adam.world_size
    dev = open_device(o, adam.local_rank)
    dev.SetRandSeed(o.seed)
    text = data.Tokens.text(o.data)
    cut = len(text) * 9 // 10
    cutting = dev, o.length, o.batch_size, rank, size
    m = CharRNN(text.vocabulary, o.hidden_size)
    m.set_optimizer(adam)
    x = tensor.Tensor((o.batch_size, o.length), dev, tensor.int32)
    m.compile([x, *m.start(o.batch_size, dev)], use_graph=True)
    for epoch in range(o.epochs):
        sums = np.zeros(4)  # losses and batches, then of the validation
        m.train()
        h, c = m.start(o.batch_size, dev)
        for x, y in batches(text[:cut], *cutting):
            sums[:2] += m(x, y, h, c).item(), 1
        m.eval()
        h, c = m.start(o.batch_size, dev)
        for x, y in batches(text[cut:], *cutting):
            scores, h, c = m(x, h, c)
            sums[2:] += m.softmax_cross_entropy(scores, y).item(), 1
        adam.communicator.all_reduce(sums)
        if rank == 0:
            losses = sums[0] / sums[1], sums[2] / sums[3]
            print(REPORT % (epoch, *losses), flush=True)
    if rank == 0:
        write(m, text, dev, o.prompt, o.sample, o.seed)


REPORT = "Epoch %d: training loss = %.4f, validation loss = %.4f"
if __name__ == "__main__":
    flags = dict(epochs=10, batch_size=32, length=64, hidden_size=128)
    flags.update(lr=2e-3, seed=0, data=SHAKESPEARE, sample=300, prompt="\n")
    main(parse_flags(__doc__.splitlines()[0], **flags))
