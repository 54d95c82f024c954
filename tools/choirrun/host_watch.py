# SPDX-License-Identifier: Apache-2.0
"""The hosts of an elastic run, whose list changes while it runs: a hostfile, or what a
script of the user's prints."""

import os
import queue
import subprocess
import threading
import time

import host_list

INTERVAL_SECONDS = 1.0


def read_script(path, limit):
    """What the script prints: lines `host:slots` or `host`."""
    try:
        done = subprocess.run(
            [os.path.abspath(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
        )
    except OSError as error:
        raise host_list.UsageError(
            "--host-discovery-script: %s: %s" % (path, error.strerror)
        ) from None
    except subprocess.TimeoutExpired:
        raise host_list.UsageError(
            "--host-discovery-script: %s was not done within %g s"
            % (path, limit)
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        raise host_list.UsageError(
            "--host-discovery-script: %s ended with status %d%s"
            % (path, done.returncode, "".join(": " + line for line in said))
        )
    return host_list.parse_lines(
        done.stdout, "--host-discovery-script: " + path
    )


class HostWatch:
    """Reads the list again and again, in a thread. `poll` gives what is new."""

    def __init__(self, read, first):
        """read: a function that gives a list of hosts; first: the list as it is."""
        self._read = read
        self._current = first
        self._news = queue.Queue()

    def start(self):
        threading.Thread(target=self._run, daemon=True).start()

    def poll(self):
        """A list of hosts, or a sentence that says why there is none, or None."""
        try:
            return self._news.get_nowait()
        except queue.Empty:
            return None

    def _run(self):
        before = told = None
        while True:
            time.sleep(INTERVAL_SECONDS)
            try:
                found = self._read()
            except host_list.UsageError as error:
                found = str(error)
            # Twice the same, as a file may be read while it is written.
            is_stable, before = found == before, found
            if not is_stable:
                continue
            if isinstance(found, str):
                if found != told:
                    told = found
                    self._news.put(found)
                continue
            told = None
            if found != self._current:
                self._current = found
                self._news.put(found)
