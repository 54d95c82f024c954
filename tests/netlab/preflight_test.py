# SPDX-License-Identifier: Apache-2.0
"""choirrun's preflight: each thing that can be wrong between hosts gives its
own sentence, with the cure, and nothing is started."""

import os
import re
import signal
import subprocess
import time
import unittest

from tests.examples import harness
from tests.netlab import netlab

CHOIRRUN = os.path.join(harness.ROOT, "tools/choirrun/choirrun.py")
# Guards against a hang, no part of what is tested.
TIME_LIMIT = 60


def setUpModule():
    reason = netlab.missing()
    if reason:
        raise unittest.SkipTest(reason)


class LabTest(unittest.TestCase):
    hosts = 2

    def setUp(self):
        # Two or three hundred milliseconds; what a test breaks stays its own.
        self.lab = netlab.Lab(
            hosts=self.hosts, interfaces=("eth0", "enp3s0"), docker0=True
        )
        self.addCleanup(self.lab.close)
        self.h1, self.h2 = self.lab.hosts[:2]

    def choirrun(self, *arguments):
        return self.h1.run([CHOIRRUN, *arguments], timeout=TIME_LIMIT)


class PreflightTest(LabTest):
    def refuses(self, *sentences, hosts="localhost:1,h2:1", more=()):
        """The preflight fails with these sentences and no others."""
        done = self.choirrun("-np", "2", "-H", hosts, *more, "hostname")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertNotIn("Traceback", done.stderr)
        for sentence in sentences:
            self.assertIn(sentence, done.stderr)
        self.assertIn(
            "choirrun: preflight found %d problem%s; nothing was started\n"
            % (len(sentences), "s" if len(sentences) > 1 else ""),
            done.stderr,
        )
        return done.stderr

    def test_passes(self):
        done = self.choirrun(
            *["-np", "2", "-H", "localhost:1,root@10.77.0.2:1", "-p", "12345"],
            *["--preflight", "hostname"],
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rate = r"[\d.e+]+ [GM]bit/s, [\d.]+ ms there and back\n"
        self.assertRegex(
            done.stdout,
            r"^choirrun: localhost: host h1, rank 0, \d+ cores?, by eth0 "
            r"10\.77\.0\.1/24\n"
            r"choirrun: 10\.77\.0\.2: host h2, rank 1, \d+ cores?, by enp3s0 "
            r"10\.77\.0\.2/24\n"
            r"choirrun: localhost -> 10\.77\.0\.2: " + rate +
            r"choirrun: 10\.77\.0\.2 -> localhost: " + rate +
            "choirrun: preflight passed\n$",
        )  # fmt: skip

    def test_check_build(self):
        done = self.choirrun("--check-build", "-H", "localhost,h2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name, host in (("localhost", "h1"), ("h2", "h2")):
            self.assertIn("%s (host %s):\n" % (name, host), done.stdout)
        self.assertEqual(done.stdout.count("  Open MPI  mpirun"), 2)

    # ---- Names and ssh ----

    def test_unknown_name(self):
        self.refuses(
            "h9: no host of the name h9 is known here; give its address, or "
            "add a line '<address> h9' to /etc/hosts",
            "nowhere: no host of the name nowhere is known here",
            hosts="localhost:1,h9:1,nowhere:1",
            more=["-np", "3"],
        )

    def test_name_of_loopback(self):
        with open(self.h1.etc_hosts, "w") as file:
            file.write("127.0.0.1 localhost\n\n127.0.1.1 h2 # as installed\n")
        self.refuses(
            "h2: the name h2 leads to 127.0.1.1, which is this host itself and "
            "of no use to others; /etc/hosts line 3, '127.0.1.1 h2 # as "
            "installed', says so: put the host's address in the network there"
        )

    def test_one_host_by_two_names(self):
        self.refuses(
            "localhost and 10.77.0.1 are all this host; give it once, with "
            "the sum of the slots",
            hosts="localhost:1,10.77.0.1:1",
        )

    def test_no_way(self):
        self.h2.cut()
        self.refuses(
            "h2: there is no way to h2: the host is off, its cable is out, or "
            "it is in another network; compare `ip -brief address`"
        )

    def test_dropped_packets(self):
        self.h2.drop_replies_to(self.h1)
        self.refuses(
            "h2: no answer from h2 port 12345: the host is off, or a firewall "
            "drops the packets; look at the host, allow TCP port 12345 in its "
            "firewall, or give another port with -p",
            more=["--start-timeout", "2"],
        )

    def test_interrupt(self):
        self.h2.drop_replies_to(self.h1)
        for number, is_read in (
            (signal.SIGINT, True),
            (signal.SIGTERM, True),
            (signal.SIGTERM, False),
        ):
            process = self.h1.start(
                [CHOIRRUN, "-np", "2", "-H", "localhost,h2"]
                + ["--start-timeout", "1000", "hostname"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            while not self.h1.run(["pidof", "ssh"]).stdout:
                time.sleep(0.05)
            if not is_read:
                process.stderr.close()
                process.stderr = None
            # Itself, not the agents that it started.
            self.h1.run(["pkill", "-%d" % number, "-o", "-f", "choirrun.py"])
            out, err = process.communicate(timeout=TIME_LIMIT)
            self.assertEqual(
                (process.returncode, out, err),
                (
                    128 + number,
                    "",
                    "choirrun: interrupted; nothing was started\n"
                    if is_read
                    else None,
                ),
            )
            end = time.monotonic() + TIME_LIMIT
            while self.h1.run(["pidof", "ssh"]).stdout:
                self.assertLess(time.monotonic(), end, "ssh is left behind")

    def test_refused(self):
        self.refuses(
            "h2: ssh was refused at h2 port 2222: no sshd listens there; start "
            "it on that host (Debian: apt-get install openssh-server), or give "
            "its port with -p",
            more=["-p", "2222"],
        )

    def test_wrong_key(self):
        self.refuses(
            "h2: ssh to guest@h2 port 12345 was denied: the host does not know "
            "your key; give it: ssh-copy-id -p 12345 guest@h2, or name another "
            "key with -i",
            hosts="localhost:1,guest@h2:1",
            more=["-i", self.lab.make_key("other_key")],
        )

    def test_unknown_host_key(self):
        self.lab.write_known_hosts("")
        self.refuses(
            "h2: the host key of h2 port 12345 is not known here; connect once "
            "by hand and compare it: ssh -p 12345 root@h2"
        )

    def test_changed_host_key(self):
        with open(self.lab.make_key("other_key") + ".pub") as file:
            self.lab.write_known_hosts(file.read())
        self.refuses(
            "h2: the host key of h2 port 12345 is not the one that is known "
            "here: the host was installed anew, or it is another one; if you "
            "know why, forget the old key: ssh-keygen -R '[h2]:12345'"
        )

    def test_frozen_host(self):
        self.h2.freeze()
        self.refuses(
            "h2: h2 port 12345 accepts connections, but its sshd says nothing: "
            "the host is frozen or overloaded, or another program listens "
            "there; look at the host",
            more=["--start-timeout", "2"],
        )

    def test_no_python(self):
        self.hide("python3")
        self.refuses(
            "h2: there is no python3, which choirrun needs on every host; "
            "install it (Debian: apt-get install python3)"
        )

    # ---- Ways ----

    def test_hosts_of_one_name(self):
        self.h2.call("hostname", "h1")
        self.refuses(
            "localhost and h2 both call themselves 'h1', so that their ranks "
            "would take each other's memory for shared; give each a name of "
            "its own: hostnamectl set-hostname <name>"
        )

    def test_unknown_interface(self):
        self.refuses(
            "h2: it has no network interface eth0; it has docker0, enp3s0; "
            "name one for each host, or leave --network-interfaces out: "
            "choirrun finds them by the routes",
            more=["--network-interfaces", "eth0"],
        )
        for names in ("eth0,enp3s0", "10.77.0.0/16"):
            done = self.choirrun(
                *["-np", "2", "-H", "localhost:1,h2:1", "--verbose"],
                *["--network-interfaces", names, "hostname"],
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("docker0", done.stderr)
            self.assertIn("choirrun: ranks meet at 10.77.0.1:", done.stderr)

    # ---- Program and data ----

    def hide(self, *names):
        """On h2; a file that cannot be executed is as good as none."""
        which = "which -a " + " ".join(names)
        paths = self.h1.run(["ssh", "h2", which]).stdout.split()
        for path in {os.path.realpath(path) for path in paths}:
            self.h2.call("mount", "--bind", "/dev/null", path)

    def program(self):
        path = os.path.join(self.lab.folder, "program")
        with open(path, "w") as file:
            file.write("#!/bin/sh\nhostname\n")
        os.chmod(path, 0o755)
        return path

    def look_at(self, path, *more):
        done = self.choirrun(
            *["-np", "2", "-H", "localhost:1,h2:1", "--preflight", path], *more
        )
        return done.returncode, done.stdout

    def test_no_open_mpi(self):
        self.hide("orted", "prted")
        self.refuses(
            "h2: Open MPI is missing, or not on the PATH of a shell that ssh "
            "starts; install it (Debian: apt-get install openmpi-bin)",
            more=["--comm", "mpi"],
        )
        # Who does not ask for it does not need it.
        self.assertEqual(self.look_at(self.program())[0], 0)

    def test_program_is_missing(self):
        path = self.program()
        self.h2.call("mount", "--bind", "/dev/null", path)
        status, out = self.look_at(path)
        self.assertEqual(status, 1)
        self.assertIn(
            "h2: there is no %s; copy it: scp -P 12345 -pr %s "
            "root@h2:%s/" % (path, path, self.lab.folder),
            out,
        )

    def test_program_differs(self):
        path = self.program()
        other = path + ".new"
        with open(other, "w") as file:
            file.write("#!/bin/sh\necho other\n")
        os.chmod(other, 0o755)
        self.h2.call("mount", "--bind", other, path)
        status, out = self.look_at(path)
        self.assertEqual(status, 1)
        self.assertRegex(
            out,
            "h2: %s is not the same as %s here \\(sha256 [0-9a-f]{12}... there,"
            " [0-9a-f]{12}... here\\); copy it: scp " % (path, path),
        )

    def test_script_of_an_interpreter(self):
        script = os.path.join(self.lab.folder, "script.py")
        other = script + ".new"
        for path, text in ((script, "print(1)"), (other, "print(2)")):
            with open(path, "w") as file:
                file.write(text)
        self.assertEqual(self.look_at("python3", script)[0], 0)
        self.h2.call("mount", "--bind", other, script)
        status, out = self.look_at("python3", script)
        self.assertEqual(status, 1)
        self.assertIn("h2: %s is not the same as" % script, out)

    def test_data(self):
        data = os.path.join(self.lab.folder, "data")
        other = os.path.join(self.lab.folder, "other")
        for folder, text in ((data, "1234"), (other, "1235")):
            os.makedirs(folder)
            with open(os.path.join(folder, "images"), "w") as file:
                file.write(text)
        self.refuses(
            "localhost: there is no /nowhere; put the data there",
            "h2: there is no /nowhere; put the data there, or give another "
            "folder with --data",
            more=["--data", "/nowhere"],
        )
        self.h2.call("mount", "--bind", other, data)
        # The program's own --data counts too.
        status, out = self.look_at(self.program(), "--data", data)
        self.assertEqual(status, 1)
        self.assertRegex(
            out,
            r"h2: the data in (\S+) are not those of localhost: 1 files, 4 "
            r"bytes, digest [0-9a-f]{12} there; 1 files, 4 bytes, digest "
            r"[0-9a-f]{12} on localhost; copy them: scp -P 12345 -pr \1 "
            r"root@h2:" + self.lab.folder + "/",
        )

    # ---- Links ----

    def test_large_packets_to_the_host(self):
        self.h2.swallow_above(1280)
        self.refuses(
            "h2: sshd at h2 port 12345 answers, but the exchange of keys "
            "stalls: small packets pass and large ones are lost (MTU); try a "
            "smaller one on both hosts: ip link set dev <interface> mtu 1200",
            more=["--start-timeout", "3"],
        )

    def test_large_packets_from_the_host(self):
        # Then what ssh itself sends is smaller.
        self.lab.add_to_ssh_config("KexAlgorithms curve25519-sha256")
        self.h1.receive_at_most(1400)
        err = self.refuses("h2 -> localhost (10.77.0.1 port ")
        self.assertIn(
            "): small messages pass, but one of 256 KiB does not arrive: "
            "packets of full size are lost on the way (MTU); those of 1400 "
            "bytes pass: ip link set dev <interface> mtu 1400 on both hosts",
            err,
        )
        for host in self.lab.hosts:
            host.set_mtu(1400)
        done = self.choirrun("-np", "2", "-H", "localhost,h2", "--preflight")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_taken_ports(self):
        take = (
            "import socket, time\n"
            "taken = [socket.create_server(('', p)) for p in range(20000, 20020)]\n"
            "print(flush=True)\n"
            "time.sleep(1000)\n"
        )
        for host in (self.h1, self.h2):
            process = host.start(
                ["python3", "-c", take], stdout=subprocess.PIPE
            )
            self.addCleanup(process.stdout.close)
            process.stdout.readline()
        self.refuses(
            "localhost: cannot listen at 10.77.0.1, 20000-20019: Address "
            "already in use; give free ports with --port-range",
            "h2: cannot listen at 10.77.0.2, 20000-20019: Address already in "
            "use",
            more=["--port-range", "20000-20019"],
        )


class ThreeHostsTest(LabTest):
    hosts = 3

    def test_three_hosts(self):
        hostfile = os.path.join(self.lab.folder, "hosts")
        with open(hostfile, "w") as file:
            file.write("# all\nlocalhost slots=1\n\nh2   slots=2 # two\nh3\n")
        done = self.choirrun(
            *["-np", "4", "--hostfile", hostfile],
            "hostname",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.split()), ["h1", "h2", "h2", "h3"])
        links = re.findall(r"choirrun: (\S+) -> (\S+): ", done.stderr)
        names = ["localhost", "h2", "h3"]
        self.assertEqual(
            sorted(links),
            sorted((a, b) for a in names for b in names if a != b),
        )


if __name__ == "__main__":
    harness.main()
