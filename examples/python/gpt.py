# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT on a text: the sizes, rates and bits of the C example gpt_dist.

python3 gpt.py --workers 2
"""

import itertools
import time

import numpy as np
from choir import autograd, data, layer, model, opt, tensor
from common import SHAKESPEARE, open_device, parse_flags, run_workers
from gpt_sample import write
from gpt_weights import read_weights


def norm(o):
    if o.rms_norm:
        return layer.RMSNorm(o.epsilon)
    return layer.LayerNorm(o.epsilon, bias=o.bias)


class Block(layer.Layer):
    def __init__(self, o):
        super().__init__()
        more = {"bias": o.bias, "deviation": 0.02}
        more["out_deviation"] = 0.02 / (2 * o.layers) ** 0.5
        self.norm1 = norm(o)
        self.attention = layer.MultiHeadAttention(
            o.heads, causal=True, kv_heads=o.kv_heads, rotary=o.rotary, **more
        )
        self.norm2 = norm(o)
        self.mlp = layer.FeedForward(o.hidden, o.activation, o.gated, **more)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(model.Model):
    def __init__(self, o, vocabulary):
        super().__init__()
        self.o = o
        self.tokens = layer.Embedding(vocabulary, o.width, deviation=0.02)
        self.positions = layer.PositionEmbedding(o.context, deviation=0.02)
        for i in range(o.layers):
            setattr(self, f"block{i}", Block(o))  # the C model's names
        self.norm = norm(o)
        self.head = layer.Linear(vocabulary, bias=False, deviation=0.02)
        self.loss = layer.SoftMaxCrossEntropy()

    def forward(self, x):  # layers that are not called have no parameters
        x = self.tokens(x) if self.o.rotary else self.positions(self.tokens(x))
        for i in range(self.o.layers):
            x = getattr(self, f"block{i}")(x)
        if self.o.head:
            return self.head(self.norm(x))
        return autograd.matmul(self.norm(x), self.tokens.W, transpose_b=True)

    def train_one_batch(self, x, y):
        loss = self.loss(self.forward(x), y)
        self.optimizer(loss)
        return loss


def train(rank, nccl_id, o):
    rate = opt.Warmup(opt.Cosine(o.lr, o.steps, o.lr / 10), o.steps // 20)
    adamw = opt.AdamW(rate, beta_2=0.99, weight_decay=0.1)
    adamw.add_group("*.b,*.bias,*.scale", weight_decay=0)
    adamw.clip_gradients(norm=1)
    adamw = opt.DistOpt(adamw, nccl_id, rank, o.workers)
    dev = open_device(o, rank)
    dev.SetRandSeed(o.seed)
    text = data.Tokens.text(o.data)
    t, cut = o.context, len(text) * 9 // 10
    share = {"rank": rank, "size": o.workers, "device": dev, "micro_shard": 1}
    first, last = text.windows(t, 1, 0, cut), text.windows(t, t, cut)
    loader = data.Loader(first, global_batch=12, seed=o.seed, **share)
    others = data.Loader(last, batch=16, shuffle=False, **share)
    m = GPT(o, text.vocabulary)
    m.set_optimizer(adamw)
    m.compile([tensor.Tensor((1, t), dev, tensor.int32)], use_graph=True)
    if o.weights:
        read_weights(m, o, o.weights)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for begin in range(0, o.steps, o.every):
        end, start = min(begin + o.every, o.steps), time.time()
        sums = np.zeros(4)  # losses and batches, then of the validation
        for x, y in itertools.islice(batches, end - begin):
            loss = m(x, y)
            sums[:2] += (0, 0) if loss is None else (loss.item(), 1)
        speed = 12 * t * (end - begin) / (time.time() - start)
        m.eval()
        for x, y in others:
            if n := len(x):  # of the last batch a worker may have none
                sums[2:] += n * m.loss(m(x), y).item(), n
        m.train()
        adamw.communicator.all_reduce(sums)
        if rank == 0:
            told = end, sums[0] / sums[1], speed, m.digest(), sums[2] / sums[3]
            print(REPORT % told, flush=True)
    if rank == 0:
        write(m, text, o.context, o.sample, o.seed)


REPORT = """Step %d: training loss = %.4f, tokens/s = %.0f, digest = %016x
Validation loss = %.4f"""
if __name__ == "__main__":
    flags = dict(layers=4, heads=4, width=128, context=64, steps=2000)
    flags.update(every=250, lr=2e-3, sample=300, seed=0, data=SHAKESPEARE)
    flags.update(bias=False, activation="gelu", gated=False, hidden=0)
    flags.update(kv_heads=0, rotary=0.0, rms_norm=False, epsilon=1e-5)
    flags.update(head=False, weights="")
    run_workers(train, parse_flags(__doc__.splitlines()[0], **flags))
