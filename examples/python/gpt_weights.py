# SPDX-License-Identifier: Apache-2.0
"""Weights as Hugging Face stores those of GPT-2 and Llama. Not a program by itself:
see gpt.py."""

import json
import os
from collections import Counter

import numpy as np

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
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


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


def rows_of(path):
    """(name, array) of a safetensors file: 8 bytes with the length of a header,
    which is JSON, then the elements."""
    data = np.memmap(path, np.uint8, "r")
    begin = 8 + int(data[:8].view("<u8")[0])
    header = json.loads(data[8:begin].tobytes())
    header.pop("__metadata__", None)
    for name, one in header.items():
        if one["dtype"] not in DTYPES:
            raise ValueError(
                f"{path}: {name} is {one['dtype']}; needs F32, F16 or BF16"
            )
        first, end = one["data_offsets"]
        x = data[begin + first : begin + end].view(DTYPES[one["dtype"]])
        if one["dtype"] == "BF16":  # the upper half of F32
            x = (x.astype(np.uint32) << 16).view(np.float32)
        yield name, x.reshape(one["shape"])


def once(pairs):
    """An object of JSON as a dict, whose names must differ."""
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1:
            raise ValueError(f"{name} stands there twice")
    return dict(pairs)


def places_of(path):
    """{name: file beside it} of an index, {"weight_map": {name: file, ...}, ...}."""
    with open(path) as file:
        try:
            places = dict(json.load(file, object_pairs_hook=once)["weight_map"])
        except (ValueError, KeyError, TypeError) as e:
            raise ValueError(f"{path} is no index of weights: {e!r}") from None
    for name, part in places.items():
        plain = isinstance(part, str) and os.path.basename(part) == part
        if not plain or part in ("", ".", ".."):
            raise ValueError(
                f"{path}: {name} is in {part!r}, which is not the plain name of a file"
            )
    return places


def parts_of(path):
    """{name: array} of the files of an index, each of which has what is placed in
    it and nothing else."""
    places, found = places_of(path), {}
    for part in sorted(set(places.values())):
        for name, x in rows_of(os.path.join(os.path.dirname(path), part)):
            if places.get(name) != part:
                raise ValueError(f"{path} does not place {name} in {part}")
            found[name] = x
    for name in places.keys() - found.keys():
        raise ValueError(f"{path}: {name} is not in {places[name]}")
    return found


def tensors_of(path):
    """{name without its prefix: array} of a file, of the files of an index, or of
    the folder of either."""
    if os.path.isdir(path):
        one = os.path.join(path, "model.safetensors")
        path = one if os.path.exists(one) else one + ".index.json"
    is_index = path.endswith(".index.json")
    found = parts_of(path) if is_index else dict(rows_of(path))
    return {
        name.removeprefix("transformer.").removeprefix("model."): x
        for name, x in found.items()
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
