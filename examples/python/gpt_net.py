# SPDX-License-Identifier: Apache-2.0
"""A GPT or, by its settings, a Llama. Not a program by itself: see gpt.py."""

from choir import autograd, layer, model


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
        self.recompute = o.recompute  # activation checkpointing

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(model.Model):
    def __init__(self, o, vocabulary, windows):
        """windows: in a step of all workers."""
        super().__init__()
        self.o = o
        # Then a step makes none, as they would be its largest tensor.
        self.has_large_scores = (
            windows * o.context > o.width and vocabulary > 4 * o.width
        )
        self.tokens = layer.Embedding(vocabulary, o.width, deviation=0.02)
        self.positions = layer.PositionEmbedding(o.context, deviation=0.02)
        for i in range(o.layers):
            setattr(self, f"block{i}", Block(o))  # the C model's names
        self.norm = norm(o)
        self.head = layer.Linear(vocabulary, bias=False, deviation=0.02)

    def rows(self, x):  # layers that are not called have no parameters
        x = self.tokens(x) if self.o.rotary else self.positions(self.tokens(x))
        for i in range(self.o.layers):
            x = getattr(self, f"block{i}")(x)
        return self.norm(x)

    def forward(self, x):
        if self.o.head:
            return self.head(self.rows(x))
        return autograd.matmul(self.rows(x), self.tokens.W, transpose_b=True)

    def loss(self, x, y):
        if not self.has_large_scores:
            return autograd.softmax_cross_entropy(self.forward(x), y)
        w, turn = (self.head.W, False) if self.o.head else (self.tokens.W, True)
        return autograd.linear_cross_entropy(self.rows(x), w, y, turn)

    def train_one_batch(self, x, y):
        loss = self.loss(x, y)
        self.optimizer(loss)
        return loss
