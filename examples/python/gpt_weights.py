# SPDX-License-Identifier: Apache-2.0
"""GPT-2's weights as Hugging Face stores them. Not a program by itself: see gpt.py."""

import json

import numpy as np

# Of the file and of the model; the parts of a matrix stand side by side by columns.
OUTER = {
    "wte.weight": ["tokens.W"], "wpe.weight": ["positions.W"],
    "ln_f.weight": ["norm.scale"], "ln_f.bias": ["norm.bias"],
}  # fmt: skip
# Behind "h.N." and "blockN.": a layer's weight and bias.
NORMS = {"ln_1": "norm1", "ln_2": "norm2"}
PRODUCTS = {
    "attn.c_attn": ["attention.query", "attention.key", "attention.value"],
    "attn.c_proj": ["attention.out"], "mlp.c_fc": ["expand"], "mlp.c_proj": ["shrink"],
}  # fmt: skip


def names(layers):
    """{name in the file: names in the model}"""
    found = dict(OUTER)
    for i in range(layers):
        for theirs, ours in NORMS.items():
            found[f"h.{i}.{theirs}.weight"] = [f"block{i}.{ours}.scale"]
            found[f"h.{i}.{theirs}.bias"] = [f"block{i}.{ours}.bias"]
        for theirs, ours in PRODUCTS.items():
            for kind, end in (("weight", "W"), ("bias", "b")):
                found[f"h.{i}.{theirs}.{kind}"] = [
                    f"block{i}.{n}.{end}" for n in ours
                ]
    return found


def tensors_of(path):
    """{name without its prefix: array} of a safetensors file: 8 bytes with the
    length of a header, which is JSON, then the elements."""
    data = np.memmap(path, np.uint8, "r")
    begin = 8 + int(data[:8].view("<u8")[0])
    header = json.loads(data[8:begin].tobytes())
    header.pop("__metadata__", None)
    dtypes, found = {"F32": "<f4", "F16": "<f2"}, {}
    for name, one in header.items():
        if one["dtype"] not in dtypes:
            raise ValueError(
                f"{path}: {name} is {one['dtype']}; needs F32 or F16"
            )
        first, end = one["data_offsets"]
        x = data[begin + first : begin + end].view(dtypes[one["dtype"]])
        found[name.removeprefix("transformer.")] = x.reshape(one["shape"])
    return found


def read_weights(m, layers, path):
    """Sets the parameters of m, which is compiled. ValueError: one is missing, has
    another shape, or has no place in m."""
    params, table, found = m.get_params(), names(layers), tensors_of(path)
    head = found.pop(
        "lm_head.weight", None
    )  # the model multiplies by wte.weight
    if head is not None and not np.array_equal(head, found.get("wte.weight")):
        raise ValueError(f"{path}: lm_head.weight differs from wte.weight")
    for name in found:
        is_mask = name.endswith((".attn.bias", ".attn.masked_bias"))
        if not is_mask and not params.keys() >= set(table.get(name, "?")):
            raise ValueError(f"{path}: the model has no place for {name}")
    for name, parts in table.items():
        if parts[0] not in params:
            continue  # a model without biases
        if name not in found:
            raise ValueError(
                f"{path}: there is no {name}, which the model needs"
            )
        needed = list(params[parts[0]].shape)
        needed[-1] *= len(parts)
        if list(found[name].shape) != needed:
            raise ValueError(
                f"{path}: {name} is {found[name].shape}; the model needs {needed}"
            )
        for part, x in zip(parts, np.split(found[name], len(parts), axis=-1)):
            params[part].copy_from_numpy(np.ascontiguousarray(x, np.float32))
