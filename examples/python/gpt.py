# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT on a text: the sizes, rates and bits of the C example gpt_dist.

python3 gpt.py --workers 2
"""

import itertools

import numpy as np
from choir import data, opt, tensor, utils
from common import SHAKESPEARE, open_device, open_text, parse_flags, run_workers
from gpt_net import GPT
from gpt_sample import write
from gpt_weights import read_weights

WINDOWS = 12  # in a step of all workers


def train(rank, nccl_id, o):
    # --steps 0: weights that are there already are to write.
    cosine = opt.Cosine(o.lr, max(o.steps, 1), o.lr / 10)
    rate = opt.Warmup(cosine, o.steps // 20)
    adamw = opt.AdamW(rate, beta_2=0.99, weight_decay=0.1)
    adamw.add_group("*.b,*.bias,*.scale", weight_decay=0)
    adamw.clip_gradients(norm=1)
    adamw = opt.DistOpt(adamw, nccl_id, rank, o.workers)
    dev = open_device(o, rank)
    dev.SetRandSeed(o.seed)
    text = open_text(o)
    t, cut = o.context, len(text) * 9 // 10
    share = {"rank": rank, "size": o.workers, "device": dev, "micro_shard": 1}
    first, last = text.windows(t, 1, 0, cut), text.windows(t, t, cut)
    loader = data.Loader(first, global_batch=WINDOWS, seed=o.seed, **share)
    others = data.Loader(last, batch=16, shuffle=False, **share)
    m = GPT(o, text.vocabulary, WINDOWS)
    m.set_optimizer(adamw)
    m.compile([tensor.Tensor((1, t), dev, tensor.int32)], use_graph=True)
    if o.weights:
        read_weights(m, o, o.weights)
    facts = {"model": "gpt", "batch": WINDOWS, "last_step": o.steps}
    facts.update(training_samples=len(first), evaluation_samples=len(last))
    log = utils.RunLog(o.log_json, adamw, m.get_states(), "tokens", **facts)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for begin in range(0, o.steps, o.every):
        end = min(begin + o.every, o.steps)
        sums = np.zeros(4)  # losses and batches, then of the validation
        with log:
            for x, y in itertools.islice(batches, end - begin):
                loss = m(x, y)
                sums[:2] += (0, 0) if loss is None else (loss.item(), 1)
                log.count(y.size())
        speed = WINDOWS * t * (end - begin) / log.seconds
        m.eval()
        for x, y in others:
            if n := len(x):  # of the last batch a worker may have none
                sums[2:] += n * m.loss(x, y).item(), n
        m.train()
        adamw.communicator.all_reduce(sums)
        loss, others_loss = sums[0] / sums[1], sums[2] / sums[3]
        log.write(
            end,
            epoch=begin // len(loader),
            loss=loss,
            evaluation_loss=others_loss,
        )
        if rank == 0:
            told = end, loss, speed, m.digest(), others_loss
            print(REPORT % told, flush=True)
    if rank == 0:
        prompt = o.prompt or "\n"
        write(m, text, o.context, o.sample, o.seed, prompt=prompt)


REPORT = """Step %d: training loss = %.4f, tokens/s = %.0f, digest = %016x
Validation loss = %.4f"""
if __name__ == "__main__":
    flags = dict(workers=2, layers=4, heads=4, width=128, context=64)
    flags.update(steps=2000, every=250, lr=2e-3, sample=300, seed=0)
    flags.update(data=SHAKESPEARE, activation="gelu", gated=False, hidden=0)
    flags.update(kv_heads=0, rotary=0.0, rms_norm=False, epsilon=1e-5)
    flags.update(head=False, recompute=False, weights="", log_json="")
    flags.update(tokenizer="", prompt="", bias=False)
    run_workers(train, parse_flags(__doc__.splitlines()[0], **flags))
