# SPDX-License-Identifier: Apache-2.0
"""tools/docker: keys come from outside the image, or are a container's own."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

START = "tools/docker/start.sh"
KEYS = ("id_ed25519", "ssh_host_ed25519_key")


def setUpModule():
    if not shutil.which("ssh-keygen"):
        raise unittest.SkipTest("no ssh-keygen (Debian: openssh-client)")


class Start(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def start(self, container, keys):
        """What start.sh leaves in a container: text by name."""
        own = os.path.join(self.folder, container)
        done = subprocess.run(
            ["sh", START, "echo", "runs on"],
            env={**os.environ, "CHOIR_KEYS": keys, "CHOIR_OWN_KEYS": own},
            capture_output=True,
            text=True,
        )
        self.assertEqual((done.returncode, done.stdout), (0, "runs on\n"))
        self.said = done.stderr
        found = {}
        for name in os.listdir(own):
            path = os.path.join(own, name)
            self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600, name)
            with open(path, encoding="utf-8") as file:
                found[name] = file.read()
        return found

    def mounted(self):
        keys = os.path.join(self.folder, "keys")
        os.mkdir(keys)
        for name in KEYS:
            path = os.path.join(keys, name)
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path],
                check=True,
            )
            os.chmod(path, 0o644)  # as a mounted folder may show it
        return keys

    def test_mounted_keys_are_those_of_all_containers(self):
        keys = self.mounted()
        first, second = self.start("1", keys), self.start("2", keys)
        self.assertEqual(first, second)
        self.assertEqual(self.said, "")
        for name in KEYS:
            with open(os.path.join(keys, name + ".pub")) as file:
                public = file.read().split()[:2]
            self.assertEqual(first[name + ".pub"].split()[:2], public)
        key = first["ssh_host_ed25519_key.pub"].split()[:2]
        self.assertEqual(first["known_hosts"].split()[:3], ["*", *key])
        key = first["id_ed25519.pub"].split()[:2]
        self.assertEqual(first["authorized_keys"].split()[:2], key)
        self.assertNotEqual(*(first[name] for name in KEYS))

    def test_without_them_each_container_has_its_own(self):
        nothing = os.path.join(self.folder, "nothing")
        first, second = self.start("1", nothing), self.start("2", nothing)
        for name in KEYS:
            self.assertNotEqual(first[name], second[name])
            self.assertIn(name, self.said)
        # At the next start they are still the same.
        self.assertEqual(self.start("1", nothing), first)

    def test_the_image_has_no_key(self):
        with open("tools/docker/Dockerfile", encoding="utf-8") as file:
            lines = re.sub(r"\\\n", " ", file.read()).splitlines()
        for line in lines:
            if line.startswith(("COPY", "ADD")):
                self.assertNotRegex(line, "id_|key|pem")
            if "ssh-keygen" in line:
                self.assertTrue(line.startswith("#"), line)
        install = next(line for line in lines if "openssh-server" in line)
        self.assertIn("rm -rf", install)
        self.assertIn("/etc/ssh/ssh_host_*", install)


if __name__ == "__main__":
    unittest.main()
