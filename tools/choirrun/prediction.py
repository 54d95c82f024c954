# SPDX-License-Identifier: Apache-2.0
"""What a step of the program will take on the links that were measured.

Choir's programs answer `--plan`: they measure their own step with one worker and
tell what every strategy would take on a link that --dist-settings gives
(docs/strategies.md). Others are not asked."""

import subprocess

# Seconds; loading the data is part of it.
LIMIT = 120
# Bits per second from which on a run just begins, without being asked.
FAST = 5e7


def slowest(links):
    """Bits per second and seconds of a round trip, the worst of all pairs."""
    return (
        min(link.bits_per_second for link in links),
        max(link.round_trip for link in links),
    )


def _run(command):
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def predict(command, links, ranks):
    """Lines to tell; none where the program has no such flag."""
    usage = _run([command[0], "--help"])
    if not usage or usage.returncode or " --plan " not in usage.stdout:
        return []
    bits_per_second, round_trip = slowest(links)
    # One collective is a message each way at the same time.
    link = "ranks=%d,latency=%.4f,bandwidth=%.4f" % (
        ranks,
        1e3 * round_trip,
        1e-6 * bits_per_second / 8,
    )
    done = _run(command + ["--workers", "1", "--plan", "--dist-settings", link])
    if not done or done.returncode:
        return []
    return done.stdout.splitlines()
