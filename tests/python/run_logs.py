# SPDX-License-Identifier: Apache-2.0
"""Logs of training runs that tests make up, whose values all differ."""

import json

HOSTS = ["node1", "node1", "node2"]


def rank(report, number):
    parts = [0.5 + 0.01 * report, 0.01, 0.2 + 0.1 * number, 0.05]
    return {
        "rank": number,
        "tokens": 1000 * (number + 1),
        "seconds": sum(parts),
        "compute_seconds": parts[0],
        "data_seconds": parts[1],
        "wait_seconds": parts[2],
        "exchange_seconds": parts[3],
    }


def reports(count=4, ranks=3, steps=10):
    """What a program logs."""
    made = []
    for i in range(count):
        loss = 4 / (i + 1) + 0.0137
        made.append(
            {
                "epoch": i,
                "step": steps * (i + 1),
                "workers": ranks,
                "training_loss": loss,
                "training_accuracy": 0.1 * i,
                "evaluation_loss": loss + 0.3,
                "evaluation_accuracy": 0.1 * i + 0.05,
                "tokens_per_second": 7000.0 + i,
                "seconds": 1.5,
                "digest": "0123456789abcdef",
                "steps": steps,
                "loss": loss,
                "ranks": [rank(i, r) for r in range(ranks)],
            }
        )
    run = {"program": "gpt_dist", "parameters": 804096, "hosts": HOSTS[:ranks]}
    made[0]["run"] = run
    return made


def write(path, made, end=""):
    """A log of these, and what stands behind it."""
    with open(path, "w", encoding="utf-8") as file:
        for report in made:
            file.write(json.dumps(report) + "\n")
        file.write(end)
    return path
