# SPDX-License-Identifier: Apache-2.0
"""Trains Choir's GPT beside Hugging Face's, in PyTorch, from the same weights.

usage: PYTHON gpt_torch_check.py --gpt-dist PROGRAM [--model NAME] [--steps N]
                                 [--batch N] [--threads N] [--data TEXT]
                                 [--schedule N] [--double]

PYTHON has both: Choir, torch, transformers and safetensors. PROGRAM is
//examples:gpt_dist. Models, of the sizes of its presets without dropout: 10m
(transformers' GPT2LMHeadModel), gpt2 (the same with what else GPT-2 has: biases and
its gelu), llama (LlamaForCausalLM); all if not given.

Weights go both ways by files. PROGRAM begins and writes its initial ones
(--export); transformers' model and examples/python/gpt.py's, which has the bits of
PROGRAM, begin with them. Both train on the same batches by the settings of gpt.py:
AdamW without decay of norms, norm of gradients limited to 1, the rate up and then
down along a cosine of --schedule steps (5000, as the presets have). Then PyTorch's trained weights are written and Choir reads them.

One JSON line a model: the largest relative difference of a step's loss; the largest
difference of a logit over the largest logit, with the initial weights, with each
one's own trained ones, and with PyTorch's trained ones in both. --double: PyTorch
trains in f64 as well, and the losses of both are compared with it. Exit status 1: a
loss differs by more than 1e-4, or a logit with the same weights; 3: a package is
missing.
"""

import argparse
import copy
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(HERE, "..", "..", "examples")
TEXT = os.path.join(EXAMPLES, "data/shakespeare/tiny_shakespeare.txt.gz")
MISSING = 3
LIMIT = 1e-4
SIZES = {
    "layers": 6, "heads": 6, "width": 384, "context": 256, "bias": False,
    "activation": "gelu", "gated": False, "hidden": 0, "kv_heads": 0, "rotary": 0.0,
    "rms_norm": False, "epsilon": 1e-5, "head": False, "dropout": 0.0,
}  # fmt: skip
LLAMA = {
    "activation": "silu", "gated": True, "hidden": 1024, "kv_heads": 2,
    "rotary": 10000.0, "rms_norm": True, "head": True,
}  # fmt: skip
GPT2 = {"bias": True, "activation": "gelu_tanh"}
MODELS = {"10m": SIZES, "gpt2": {**SIZES, **GPT2}, "llama": {**SIZES, **LLAMA}}
# transformers' names.
GELUS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}
LR, BETAS, DECAY, SEED = 1e-3, (0.9, 0.99), 0.1, 0


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gpt-dist", required=True)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", default=TEXT)
    parser.add_argument("--schedule", type=int, default=5000)
    parser.add_argument("--double", action="store_true")
    return parser.parse_args(argv)


def export(program, sizes, vocabulary, path):
    """The initial weights of the C program, by a step that changes nothing: they do
    not depend on the text, of which little has to be looked at so."""
    text = path + ".txt"
    with open(text, "w", encoding="ascii") as file:
        file.write("ab" * 6 * sizes["context"])
    words = [program, "--workers", "1", "--data", text, "--vocabulary"]
    words += [
        str(vocabulary),
        "--lr",
        "0",
        "--weight-decay",
        "0",
        "--steps",
        "1",
    ]
    words += ["--sample", "0", "--seed", str(SEED), "--global-batch", "1"]
    words += ["--export", path]
    words += [
        f"--{n.replace('_', '-')}={str(v).lower()}" for n, v in sizes.items()
    ]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def make_peer(transformers, o, vocabulary):
    """transformers' model of these sizes."""
    if o.rotary:
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=vocabulary, hidden_size=o.width,
                intermediate_size=o.hidden, num_hidden_layers=o.layers,
                num_attention_heads=o.heads, num_key_value_heads=o.kv_heads,
                max_position_embeddings=o.context, rms_norm_eps=o.epsilon,
                rope_theta=o.rotary, tie_word_embeddings=not o.head,
            )
        )  # fmt: skip
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocabulary, n_positions=o.context, n_embd=o.width,
            n_layer=o.layers, n_head=o.heads, activation_function=GELUS[o.activation],
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            layer_norm_epsilon=o.epsilon, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def load(torch, peer, tensors, o):
    """A model of transformers' GPT-2 without biases is one whose biases stay 0."""
    missing, more = peer.load_state_dict(tensors, strict=False)
    params = dict(peer.named_parameters())
    no_bias = [] if o.bias else [n for n in params if n.endswith(".bias")]
    rest = set(missing) - set(no_bias) - {"lm_head.weight"}
    if more or rest or ("lm_head.weight" in missing and o.head):
        raise SystemExit(
            f"names differ: {missing} are missing, {more} not known"
        )
    for name in no_bias:
        torch.nn.init.zeros_(params[name]).requires_grad_(False)


def peer_step(torch, peer, rate_of):
    """A function of step and batch that trains and returns the loss."""
    params = [p for p in peer.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=1e-8)

    def step(i, x, y):
        logits = peer(x).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), y.flatten()
        )
        adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        for group in adamw.param_groups:
            group["lr"] = rate_of(i)
        adamw.step()
        return loss.item()

    return step


def make_own(o, options):
    """Choir's model, compiled, its batches, and its rate by the step."""
    from choir import data, device, opt, tensor
    from gpt import GPT

    dev = device.create_cpu_device()
    dev.SetRandSeed(SEED)
    text = data.Tokens.text(options.data)
    loader = data.Loader(
        text.windows(o.context), global_batch=options.batch, seed=SEED,
        rank=0, size=1, device=dev, micro_shard=1,
    )  # fmt: skip
    rate = opt.Cosine(LR, options.schedule, LR / 10)
    rate = opt.Warmup(rate, options.schedule // 20)
    adamw = opt.AdamW(rate, beta_2=BETAS[1], weight_decay=DECAY)
    adamw.add_group("*.b,*.bias,*.scale", weight_decay=0)
    adamw.clip_gradients(norm=1)
    own = GPT(o, text.vocabulary)
    own.set_optimizer(adamw)
    shape = (1, o.context)
    own.compile([tensor.Tensor(shape, dev, tensor.int32)], use_graph=True)
    return own, loader, rate.value, text.vocabulary


def run(torch, name, options, folder):
    import safetensors.torch
    import transformers
    from choir import tensor
    from gpt_weights import read_weights

    o = SimpleNamespace(**MODELS[name])
    first = os.path.join(folder, "first.safetensors")
    last = os.path.join(folder, "last.safetensors")
    own, loader, rate, vocabulary = make_own(o, options)
    export(options.gpt_dist, MODELS[name], vocabulary, first)
    fresh = own.digest()
    read_weights(own, o, first)
    if own.digest() != fresh:
        raise SystemExit("gpt.py's initial weights are not those of gpt_dist")
    peer = make_peer(transformers, o, vocabulary)
    load(torch, peer, safetensors.torch.load_file(first), o)
    steps = [peer_step(torch, peer, rate)]
    if options.double:
        steps.append(peer_step(torch, copy.deepcopy(peer).double(), rate))

    def apart(x):
        """The largest difference of logits over the largest one."""
        own.eval()
        with torch.no_grad():
            want = peer(
                torch.from_numpy(tensor.to_numpy(x)).long()
            ).logits.numpy()
        got = tensor.to_numpy(own(x))
        own.train()
        return float(abs(got - want).max() / abs(want).max())

    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    found = {"model": name, "steps": options.steps, "batch": options.batch}
    losses = []
    for i, (x, y) in enumerate(itertools.islice(batches, options.steps)):
        if i == 0:
            found["logits_first"] = apart(x)
        a = torch.from_numpy(tensor.to_numpy(x)).long()
        b = torch.from_numpy(tensor.to_numpy(y)).long()
        losses.append([own(x, y).item()] + [step(i, a, b) for step in steps])

    def losses_apart(i, j):
        return max(abs(at[i] / at[j] - 1) for at in losses)

    found["loss"] = losses_apart(0, 1)
    if options.double:
        found["loss_to_double"] = losses_apart(0, 2)
        found["loss_of_torch_to_double"] = losses_apart(1, 2)
    found["last_losses"] = losses[-1]
    found["logits_trained_apart"] = apart(x)
    trained = dict(peer.state_dict())
    if not o.head:
        del trained["lm_head.weight"]  # the same memory as the tokens'
    if not o.bias:
        trained = {n: p for n, p in trained.items() if not n.endswith(".bias")}
    safetensors.torch.save_file(trained, last)
    read_weights(own, o, last)
    found["logits_last"] = apart(x)
    print(json.dumps(found), flush=True)
    return max(found[n] for n in ("loss", "logits_first", "logits_last"))


def main(argv):
    options = parse(argv)
    os.environ["CHOIR_THREADS"] = str(options.threads)
    sys.path.insert(0, os.path.join(EXAMPLES, "python"))
    try:
        torch, _, _, _ = map(
            importlib.import_module,
            ("torch", "transformers", "safetensors.torch", "choir"),
        )
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return MISSING
    torch.set_num_threads(options.threads)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in [options.model] if options.model else MODELS:
            worst = max(worst, run(torch, name, options, folder))
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
