# SPDX-License-Identifier: Apache-2.0
"""Einstein's summation: products of two tensors after another, each a batched matrix
product.
"""

from __future__ import annotations

from choir import tensor
from choir.tensor import Tensor, _apply, product, reshape, transpose


def einsum(ops: str, args: tuple[Tensor, ...]) -> Tensor:
    """Einstein's summation for one or more tensors, as numpy.einsum."""
    text = ops.replace(" ", "")
    if "." in text:
        raise NotImplementedError("einsum: '...' in the subscripts")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(args):
        raise ValueError(
            f"einsum: {len(terms)} terms in {ops!r} for {len(args)} tensors"
        )
    letters = "".join(terms)
    if not arrow:
        output = "".join(
            c for c in sorted(set(letters)) if letters.count(c) == 1
        )
    sizes: dict[str, int] = {}
    for term, t in zip(terms, args):
        if len(term) != t.ndim():
            raise ValueError(
                f"einsum: {term!r} for a tensor of shape {t.shape}"
            )
        if len(set(term)) != len(term):
            raise NotImplementedError(
                f"einsum: a letter comes twice in {term!r}"
            )
        for letter, size in zip(term, t.shape):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(
                    f"einsum: {letter!r} is {sizes[letter]} and {size} in {ops!r}"
                )
    if not set(output) <= set(letters):
        raise ValueError(
            f"einsum: the output {output!r} has a letter of no input"
        )
    term, result = terms[0], args[0]
    for i, (next_term, t) in enumerate(zip(terms[1:], args[1:])):
        later = set(output).union(*terms[i + 2 :])
        term, result = _multiply(term, result, next_term, t, later)
    for letter in [c for c in term if c not in output]:
        result = tensor.sum(result, term.index(letter))
        term = term.replace(letter, "")
    return (
        transpose(result, [term.index(c) for c in output]) if output else result
    )


def _multiply(left: str, a: Tensor, right: str, b: Tensor, later: set):
    """One product of two, as a batched matrix product."""
    batch = [c for c in left if c in right and c in later]
    summed = [c for c in left if c in right and c not in later]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]

    def sizes(term: str, t: Tensor, of: list[str]) -> list[int]:
        return [t.shape[term.index(c)] for c in of]

    a2 = transpose(a, [left.index(c) for c in batch + rows + summed])
    b2 = transpose(b, [right.index(c) for c in batch + summed + columns])
    n, m = product(sizes(left, a, batch)), product(sizes(left, a, rows))
    k, p = product(sizes(left, a, summed)), product(sizes(right, b, columns))
    out = _apply("matmul", reshape(a2, (n, m, k)), reshape(b2, (n, k, p)))
    shape = (
        sizes(left, a, batch) + sizes(left, a, rows) + sizes(right, b, columns)
    )
    return "".join(batch + rows + columns), reshape(out, shape)
