# SPDX-License-Identifier: Apache-2.0
"""Weights as Hugging Face stores those of GPT-2 and Llama. Not a program by itself:
see gpt.py."""

import numpy as np

from choir import data

# A file's layers and the model's, of which those of one line stand side by side in the
# file's matrix, by columns. N: a block's number.
GPT2 = {
    "wte": "tokens", "wpe": "positions", "ln_f": "norm", "lm_head": "head",
    "h.N.ln_1": "blockN.norm1", "h.N.ln_2": "blockN.norm2",
    "h.N.attn.c_attn":
        "blockN.attention.query blockN.attention.key blockN.attention.value",
    "h.N.attn.c_proj": "blockN.attention.out",
    "h.N.mlp.c_fc": "blockN.mlp.expand", "h.N.mlp.c_proj": "blockN.mlp.shrink",
}  # fmt: skip
LLAMA = {
    "embed_tokens": "tokens", "norm": "norm", "lm_head": "head",
    "layers.N.input_layernorm": "blockN.norm1",
    "layers.N.post_attention_layernorm": "blockN.norm2",
    "layers.N.self_attn.q_proj": "blockN.attention.query",
    "layers.N.self_attn.k_proj": "blockN.attention.key",
    "layers.N.self_attn.v_proj": "blockN.attention.value",
    "layers.N.self_attn.o_proj": "blockN.attention.out",
    "layers.N.mlp.gate_proj": "blockN.mlp.gate",
    "layers.N.mlp.up_proj": "blockN.mlp.expand",
    "layers.N.mlp.down_proj": "blockN.mlp.shrink",
}  # fmt: skip
BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")


def names(o):
    """{name in the file: names in the model, whether the file has (out, in)}"""
    is_llama = bool(o.rms_norm and o.rotary and o.gated)
    grouped = o.kv_heads not in (0, o.heads)
    if not is_llama and (o.rms_norm or o.rotary or o.gated or grouped):
        raise ValueError(
            "there are names for Llama's settings (--rms-norm, --rotary and --gated) "
            "and for GPT-2's (none of these, no --kv-heads); the model has others"
        )
    found = {}
    for theirs, ours in (LLAMA if is_llama else GPT2).items():
        linear = theirs == "lm_head" or is_llama and theirs.endswith("_proj")
        ends = ("scale", "bias") if "norm" in ours else ("W", "b")
        for i in range(o.layers if "N" in theirs else 1):
            for kind, end in zip(("weight", "bias"), ends):
                found[f"{theirs}.{kind}".replace("N", str(i))] = (
                    [f"{n}.{end}".replace("N", str(i)) for n in ours.split()],
                    linear and kind == "weight",
                )
    return found


def tensors_of(path):
    """{name without its prefix: array} of what data.Safetensors opens."""
    file = data.Safetensors(path)
    return {
        name.removeprefix("transformer.")
        .removeprefix("model."): file[name]
        .numpy()
        for name in file
    }


def read_weights(m, o, path):
    """Sets the parameters of m, which is compiled and has the settings o.
    ValueError: one is missing, has another shape, or has no place in m."""
    params, found = m.get_params(), tensors_of(path)
    table = {n: row for n, row in names(o).items() if row[0][0] in params}
    tokens = next(iter(table))
    if "lm_head.weight" not in table and "lm_head.weight" in found:
        # The model multiplies by the tokens' matrix.
        if not np.array_equal(found.pop("lm_head.weight"), found.get(tokens)):
            raise ValueError(f"{path}: lm_head.weight differs from {tokens}")
    for name in found:
        if name not in table and not name.endswith(BUFFERS):
            raise ValueError(f"{path}: the model has no place for {name}")
    for name, (parts, is_transposed) in table.items():
        if name not in found:
            raise ValueError(
                f"{path}: there is no {name}, which the model needs"
            )
        needed = list(params[parts[0]].shape)
        needed[-1] *= len(parts)
        x, shape = found[name], needed[::-1] if is_transposed else needed
        if list(x.shape) != shape:
            raise ValueError(
                f"{path}: {name} is {x.shape}; the model needs {shape}"
            )
        x = x.T if is_transposed else x
        for part, one in zip(parts, np.split(x, len(parts), axis=-1)):
            params[part].copy_from_numpy(np.ascontiguousarray(one, np.float32))
