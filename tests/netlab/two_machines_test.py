# SPDX-License-Identifier: Apache-2.0
"""docs/two_machines.md as it is written: each of its shell blocks is run on
the first of two hosts, one after the other, as somebody would type it."""

import os
import platform
import pwd
import re
import subprocess
import unittest

from tests.examples import harness
from tests.netlab import netlab

PAGE = os.path.join(harness.ROOT, "docs/two_machines.md")
# A guard against a hang, no part of what is tested.
TIME_LIMIT = 200
PASSWORD = "choir"
# crypt(PASSWORD)
PASSWORD_HASH = (
    "$6$choir$9F4E.TrZrDivlY7ybWd5cu3wur/OLuXTil.fjs0Ii8DDxWHpU8n"
    "wnLKyt214JrlvrdxLrmwS7DcamHeU2BR7z1"
)


def setUpModule():
    reason = netlab.missing()
    if reason:
        raise unittest.SkipTest(reason)


def shell_blocks():
    with open(PAGE) as file:
        return re.findall(r"^```sh\n(.*?)^```$", file.read(), re.M | re.S)


class TwoMachinesTest(unittest.TestCase):
    def setUp(self):
        # As on the page. A faster cable than the user's, for the copies.
        self.lab = netlab.Lab(
            rate="100mbit", port=22, interfaces=("eth0", "enp3s0"), docker0=True
        )
        self.addCleanup(self.lab.close)
        for host in self.lab.hosts:
            # What the page writes must not reach this machine.
            host.call("mount", "-t", "tmpfs", "opt", "/opt")
            host.make_private(netlab.HOME)
            for name in (".ssh", ".bashrc", ".zshenv"):
                host.call("rm", "-rf", os.path.join(netlab.HOME, name))
        # ssh as it comes, without the lab's keys.
        with open(os.path.join(self.lab.folder, "ssh_config"), "w"):
            pass
        self.set_password(self.lab.hosts[1])
        self.lab.hosts[1].start_sshd(12345, is_plain=True)

    def set_password(self, host):
        path = os.path.join(host.folder, "shadow")
        with open("/etc/shadow") as file:
            lines = file.read().splitlines()
        user = pwd.getpwuid(os.geteuid()).pw_name
        for i, line in enumerate(lines):
            words = line.split(":")
            if words[0] == user:
                lines[i] = ":".join([user, PASSWORD_HASH] + words[2:])
        with open(path, "w") as file:
            file.write("\n".join(lines) + "\n")
        os.chmod(path, 0o600)
        host.call("mount", "--bind", path, "/etc/shadow")

    def tree(self):
        """What the source tree looks like after `bazel build`."""
        folder = os.path.join(self.lab.folder, "tree")
        os.mkdir(folder)
        for name, target in (("bazel-bin", "."), ("examples", "examples")):
            os.symlink(
                os.path.join(harness.ROOT, target), os.path.join(folder, name)
            )
        return folder

    def answers(self):
        """What the user types when ssh asks: a program that ssh runs."""
        path = os.path.join(self.lab.folder, "askpass")
        with open(path, "w") as file:
            file.write(
                '#!/bin/sh\ncase $1 in *"(yes/no"*) echo yes ;; *) echo %s ;; '
                "esac\n" % PASSWORD
            )
        os.chmod(path, 0o755)
        return path

    def test_the_page_as_written(self):
        blocks = shell_blocks()
        self.assertGreaterEqual(len(blocks), 7)
        environment = {
            "HOME": netlab.HOME,
            "SSH_ASKPASS": self.answers(),
            "SSH_ASKPASS_REQUIRE": "force",
            "OMP_NUM_THREADS": "1",
        }
        # There is nobody else's agent or key.
        environment["SSH_AUTH_SOCK"] = ""
        tree = self.tree()
        said = []
        for block in blocks:
            done = self.lab.hosts[0].run(
                ["sh", "-e", "-c", "cd '%s'\n%s" % (tree, block)],
                env=environment,
                timeout=TIME_LIMIT,
            )
            self.assertEqual(
                done.returncode,
                0,
                "%s\n%s%s" % (block, done.stdout, done.stderr),
            )
            said.append(done.stdout)
        everything = "".join(said)
        self.assertIn("choirrun: preflight passed\n", everything)
        self.assertIn("choirrun: 10.77.0.2: host h2, rank 1, ", everything)
        self.assertEqual(everything.count("  Choir     "), 2)
        for output in (everything, said[-1]):
            self.assertRegex(output, r"Evaluation accuracy = 0\.\d+\n")

    def test_packages_are_known(self):
        """Those of this system; each that the page names has its line."""
        version = platform.freedesktop_os_release()["VERSION_ID"]
        with open(PAGE) as file:
            lines = dict(
                re.findall(
                    r"^apt-get install (.*?) +# Debian (\d+)$",
                    file.read(),
                    re.M,
                )
            )
        packages = {system: names for names, system in lines.items()}
        self.assertEqual(sorted(packages), ["12", "13"])
        for name in packages[version].split():
            done = subprocess.run(
                ["dpkg-query", "-W", "-f", "${db:Status-Status} ", name],
                capture_output=True,
                text=True,
            )
            # One for each architecture.
            self.assertEqual(set(done.stdout.split()), {"installed"}, name)


if __name__ == "__main__":
    harness.main()
