#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine, joined by a switch of a given speed.

    netlab.py --hosts 2 --rate 10mbit -- COMMAND [ARGUMENT]...

runs COMMAND on the first host and ends with its status. As a library:

    with netlab.Lab(hosts=2, rate="10mbit") as lab:
        done = lab.hosts[0].run(["ssh", "h2", "hostname"])

A host is a set of kernel namespaces: own name, processes, network interfaces,
/dev/shm, /etc/hosts; sshd listens on it. Its files are the machine's. Hosts
are called h1, h2, ...; their addresses are 10.77.0.1, 10.77.0.2, ... and
fd77::1, fd77::2, ...; root of each may ssh to all others with no more words
than `ssh h2`, as /etc/ssh/ssh_config of a host names port and key.

Nothing can be left behind: namespaces without a name, a file system in memory
that only the lab sees, and processes that the kernel ends with the lab
(PR_SET_PDEATHSIG), also when it is killed by SIGKILL. So any number of labs
may run at once and need no agreement on names or addresses.

Needs root, and the Debian packages of NEEDED.
"""

import argparse
import ctypes
import itertools
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

NEEDED = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
SSH_PORT = 12345
# Seconds; only against a hang.
SET_UP_LIMIT = 60

# sshd is in none of a plain user's folders.
PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"

# Where sshd's shells start.
HOME = pwd.getpwuid(os.geteuid()).pw_dir


def missing():
    """What keeps a lab from running here, in a sentence, or None."""
    lacking = {
        tool: package
        for tool, package in NEEDED.items()
        if not shutil.which(tool, path=PATH)
    }
    if lacking:
        return "the network lab needs %s (Debian: %s)" % (
            ", ".join(lacking),
            " ".join(sorted(set(lacking.values()))),
        )
    if os.geteuid() != 0:
        return "the network lab needs root, for network namespaces"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork"]
        + ["ip", "link", "add", "probe0", "type", "bridge"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return (
            "the network lab needs a system that lets root make network "
            "namespaces and bridges: " + done.stderr.strip()
        )
    return None


class LabError(Exception):
    """The lab could not be set up."""


def _call(*command, **options):
    """Runs a tool that must succeed; what it printed."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SET_UP_LIMIT,
        env={**os.environ, "PATH": PATH},
        **options,
    )
    if done.returncode:
        raise LabError(
            "%s: status %d: %s"
            % (shlex.join(command), done.returncode, done.stderr.strip())
        )
    return done.stdout


_private_folder = False
_lab_numbers = itertools.count(1)


def _make_folder():
    """A folder that goes with this process: below /run, over which it and its
    children see an empty file system in memory that nobody else sees."""
    global _private_folder
    if not _private_folder:
        libc = ctypes.CDLL(None, use_errno=True)
        clone_newns = 0x00020000
        if libc.unshare(clone_newns):
            raise LabError("unshare: " + os.strerror(ctypes.get_errno()))
        _call("mount", "--make-rprivate", "/")
        _call("mount", "-t", "tmpfs", "-o", "mode=755", "netlab", "/run")
        os.mkdir("/run/sshd", 0o755)
        _private_folder = True
    folder = "/run/lab%d" % next(_lab_numbers)
    os.mkdir(folder, 0o755)
    return folder


def _rate_bits(rate):
    match = re.fullmatch(r"(\d+)(k|m|g)bit", rate)
    if not match:
        raise LabError("rate '%s' is not of the form 10mbit or 1gbit" % rate)
    return int(match[1]) * {"k": 10**3, "m": 10**6, "g": 10**9}[match[2]]


class _Space:
    """Namespaces and the process that keeps them: its end is theirs, and that
    of every process in them."""

    # The first process of a PID namespace inherits its orphans; SIGCHLD is
    # ignored so that none of them stays a zombie.
    KEEPER = """set -e
read pid rest </proc/self/stat
mount -t proc proc /proc
mount -t sysfs sysfs /sys
%s
echo $pid
trap '' CHLD
exec sleep infinity"""

    def __init__(self, set_up):
        self.keeper = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork"]
            + ["--kill-child", "--pid", "--net", "--uts", "--ipc", "--mount"]
            + ["sh", "-c", self.KEEPER % set_up],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PATH": PATH},
            text=True,
            start_new_session=True,
        )
        line = self.keeper.stdout.readline()
        if not line:
            raise LabError(
                "a host could not be set up: %s"
                % self.keeper.communicate()[1].strip()
            )
        self.pid = int(line)

    def enter(self):
        """What to put before a command so that it runs here."""
        return ["nsenter", "--target", str(self.pid), "--mount", "--uts"] + [
            "--ipc",
            "--net",
            "--pid",
        ]

    def call(self, *command):
        return _call(*self.enter(), *command)

    def call_outside(self, *command):
        """Only in this network, so that process ids are the lab's."""
        return _call("nsenter", "--target", str(self.pid), "--net", *command)

    def close(self):
        # The kernel ends the namespace's processes before this one is gone.
        if self.keeper.poll() is None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.keeper.communicate()


class Host(_Space):
    """One host: `name`, `address`, `address6`, `interface`, `folder` (its own,
    where its TMPDIR and sshd's log are)."""

    def __init__(self, lab, index, interface):
        self.lab = lab
        self.name = "h%d" % (index + 1)
        self.started = []
        self.is_shaped = False
        self.port_name = "port%d" % (index + 1)
        self.interface = interface
        self.address = "10.77.0.%d" % (index + 1)
        self.address6 = "fd77::%x" % (index + 1)
        self.folder = os.path.join(lab.folder, self.name)
        self.temporary = os.path.join(self.folder, "tmp")
        self.etc_hosts = os.path.join(self.folder, "etc_hosts")
        os.makedirs(self.temporary)
        with open(self.etc_hosts, "w") as file:
            file.write(lab.etc_hosts())
        super().__init__(
            "\n".join(
                [
                    "hostname " + self.name,
                    # Docker's default.
                    "mount -t tmpfs -o size=64m shm /dev/shm",
                    "mount --bind %s /etc/hosts" % self.etc_hosts,
                    "mount --bind %s/ssh_config /etc/ssh/ssh_config"
                    % lab.folder,
                    # Shells start as on a bare machine: what this user has
                    # them do takes time, and may take locks.
                    "for file in .bashrc .zshenv; do",
                    "  [ ! -e %s/$file ] ||" % shlex.quote(HOME),
                    "    mount --bind /dev/null %s/$file" % shlex.quote(HOME),
                    "done",
                    "ip link set lo up",
                ]
            )
        )
        self.space = os.readlink("/proc/%d/ns/uts" % self.pid)
        self._plug_in()

    def close(self):
        super().close()
        for process in self.started:
            process.kill()

    def _plug_in(self):
        switch = self.lab.switch
        switch.call_outside(
            *["ip", "link", "add", self.port_name, "type", "veth", "peer"],
            *["name", self.interface, "netns", str(self.pid)],
        )
        switch.call(
            *["ip", "link", "set", self.port_name, "master", "switch", "up"]
        )
        self.ip("link", "set", self.interface, "up")
        self.ip("addr", "add", self.address + "/24", "dev", self.interface)
        self.ip(
            *["addr", "add", self.address6 + "/64", "dev", self.interface],
            "nodad",
        )
        if self.lab.rate:
            self.set_rate(self.lab.rate)

    def ip(self, *arguments):
        """iproute2's ip on this host."""
        return self.call("ip", *arguments)

    def set_rate(self, rate):
        """Both directions of this host's cable."""
        # Enough for what a timer of 200 Hz hands out at once.
        burst = max(16384, _rate_bits(rate) // 8 // 200)
        shape = ["root", "tbf", "rate", rate, "burst", str(burst)]
        shape += ["latency", "50ms"]
        # Deleted first: what is queued could be more than a smaller burst, and
        # would never leave.
        for space, interface in (
            (self, self.interface),
            (self.lab.switch, self.port_name),
        ):
            if self.is_shaped:
                space.call("tc", "qdisc", "del", "dev", interface, "root")
            space.call("tc", "qdisc", "add", "dev", interface, *shape)
        self.is_shaped = True

    def add_docker0(self):
        """What Docker leaves on every host: a bridge that leads nowhere, with
        the same address on all."""
        self.ip("link", "add", "docker0", "type", "bridge")
        self.ip("addr", "add", "172.17.0.1/16", "dev", "docker0")
        self.ip("link", "set", "docker0", "up")

    def set_mtu(self, mtu):
        """The largest packet that this host sends, which it knows."""
        self.ip("link", "set", self.interface, "mtu", str(mtu))

    def swallow_above(self, bytes):
        """The switch loses larger packets from and to this host and tells
        nobody."""
        for host in self.lab.hosts:
            # Or they would pass the switch in one piece, however large.
            host.ip("link", "set", "dev", host.interface, "gso_max_segs", "1")
        self.lab.switch.call(
            *["ip", "link", "set", self.port_name, "mtu", str(bytes)]
        )

    def receive_at_most(self, bytes):
        """This host loses larger packets that come in, and sends none, but
        promises its peers that it takes 1500 bytes."""
        for host in self.lab.hosts:
            host.ip("link", "set", "dev", host.interface, "gso_max_segs", "1")
        self.set_mtu(bytes)
        self.ip(
            *["route", "change", "10.77.0.0/24", "dev", self.interface],
            *["src", self.address, "advmss", "1460"],
        )

    def cut(self):
        """Pulls the cable."""
        self.lab.switch.call("ip", "link", "set", self.port_name, "down")

    def mend(self):
        self.lab.switch.call("ip", "link", "set", self.port_name, "up")

    def drop_replies_to(self, other):
        """Packets of `other` get no answer, not even a refusal, as behind a
        firewall."""
        self.ip("route", "add", "blackhole", other.address + "/32")

    def freeze(self):
        """Stops every process of this host but its first."""
        self.call("sh", "-c", "kill -STOP -1")

    def thaw(self):
        self.call("sh", "-c", "kill -CONT -1")
        # nsenter stops with its child, and does not wake with it.
        for process in self.started:
            process.send_signal(signal.SIGCONT)

    def power_off(self):
        """Every process of this host is gone at once, its cable pulled."""
        self.cut()
        self.close()

    def ranks(self, program):
        """{id outside of the lab: CHOIR_RANK} of what runs this program here."""
        found = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink("/proc/%s/ns/uts" % name) != self.space:
                    continue
                exe = os.path.basename(os.readlink("/proc/%s/exe" % name))
                with open("/proc/%s/environ" % name) as file:
                    rank = re.search(r"\0CHOIR_RANK=(\d+)", "\0" + file.read())
            except OSError:
                continue  # it has ended
            if exe == program and rank:
                found[int(name)] = int(rank[1])
        return found

    def start_sshd(self, port, is_plain=False):
        """With the lab's key; or plain: with what is in ~/.ssh, and
        passwords."""
        keys = ".ssh/authorized_keys" if is_plain else "%s/key.pub"
        config = os.path.join(self.folder, "sshd_config_%d" % port)
        with open(config, "w") as file:
            file.write(
                f"Port {port}\n"
                f"HostKey {self.lab.folder}/host_key\n"
                f"AuthorizedKeysFile {keys.replace('%s', self.lab.folder)}\n"
                f"PasswordAuthentication {'yes' if is_plain else 'no'}\n"
                "PidFile none\n"
                "UsePAM no\n"
                "StrictModes no\n"
                "PermitRootLogin yes\n"
                "Subsystem sftp internal-sftp\n"
                # Open MPI names its folders by user and process id.
                f"SetEnv TMPDIR={self.temporary}\n"
            )
        log = os.path.join(self.folder, "sshd.log")
        self.call(shutil.which("sshd", path=PATH), "-f", config, "-E", log)
        # It goes into the background before it listens.
        end = time.monotonic() + SET_UP_LIMIT
        while not self.is_listening(port):
            if time.monotonic() > end:
                with open(log) as file:
                    raise LabError("sshd does not listen: " + file.read())
            time.sleep(0.005)

    def is_listening(self, port):
        """Whether somebody listens at this TCP port, of IPv4 and IPv6."""
        for table in ("tcp", "tcp6"):
            with open("/proc/%d/net/%s" % (self.pid, table)) as file:
                rows = [line.split() for line in file.readlines()[1:]]
            # Address:port in hexadecimal, and the state "listen".
            if not any(
                row[1].endswith(":%04X" % port) and row[3] == "0A"
                for row in rows
            ):
                return False
        return True

    def make_private(self, folder):
        """What is written below `folder` from now on is this host's alone."""
        layers = os.path.join(self.folder, folder.strip("/").replace("/", "_"))
        for name in ("upper", "work"):
            os.makedirs(os.path.join(layers, name))
        self.call(
            *["mount", "-t", "overlay", "overlay", "-o"],
            f"lowerdir={folder},upperdir={layers}/upper,workdir={layers}/work",
            folder,
        )

    def environment(self):
        return {
            **os.environ,
            "TMPDIR": self.temporary,
            "NETLAB_HOSTS": " ".join(h.name for h in self.lab.hosts),
            "NETLAB_ADDRESSES": " ".join(h.address for h in self.lab.hosts),
            "NETLAB_SUBNET": "10.77.0.0/24",
            "NETLAB_SSH_PORT": str(self.lab.port),
            "NETLAB_SSH_KEY": os.path.join(self.lab.folder, "key"),
            # Who started the lab as root meant it; Open MPI asks twice.
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def start(self, command, **options):
        """subprocess.Popen on this host."""
        options.setdefault("stdin", subprocess.DEVNULL)
        env = {**self.environment(), **options.pop("env", {})}
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL"]
            + self.enter()
            + [str(word) for word in command],
            env=env,
            **options,
        )
        self.started.append(process)
        return process

    def run(self, command, timeout=SET_UP_LIMIT, **options):
        """Runs a command to its end: status, stdout and stderr as text. Past
        `timeout` seconds all processes of this host are killed, sshd too, and
        LabError tells what the command had said."""
        process = self.start(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.call("sh", "-c", "kill -KILL -1 || true")
            raise LabError(
                "%s: not done within %g s; it said:\n%s%s"
                % (shlex.join(command), timeout, *process.communicate())
            ) from None
        return subprocess.CompletedProcess(
            command, process.returncode, out, err
        )


class Lab:
    """Hosts on a switch.

    hosts: how many.
    rate: speed of each host's cable, both ways, as "10mbit"; None: no limit.
    interfaces: names of the hosts' interfaces, in turn.
    port: where sshd listens on every host.
    docker0: whether each host has such an interface.
    """

    def __init__(
        self,
        hosts=2,
        rate=None,
        interfaces=("eth0",),
        port=SSH_PORT,
        docker0=False,
    ):
        self.rate = rate
        self.port = port
        self.host_count = hosts
        self.hosts = []
        self.switch = None
        reason = missing()
        if reason:
            raise LabError(reason)
        self.folder = _make_folder()
        try:
            self._set_up(interfaces, docker0)
        except BaseException:
            self.close()
            raise

    def etc_hosts(self):
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        for i in range(1, self.host_count + 1):
            lines.append("10.77.0.%d h%d" % (i, i))
        return "\n".join(lines) + "\n"

    def make_key(self, name):
        """A key pair: the path of its private half."""
        path = os.path.join(self.folder, name)
        _call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
        return path

    def write_known_hosts(self, key):
        """The public key that all hosts are known to have; "": none is."""
        with open(os.path.join(self.folder, "known_hosts"), "w") as file:
            file.write(key and "* %s\n" % " ".join(key.split()[:2]))

    def add_to_ssh_config(self, line):
        with open(os.path.join(self.folder, "ssh_config"), "a") as file:
            file.write(line + "\n")

    def _set_up(self, interfaces, docker0):
        for name in ("host_key", "key"):
            self.make_key(name)
        with open(os.path.join(self.folder, "host_key.pub")) as file:
            self.write_known_hosts(file.read())
        with open(os.path.join(self.folder, "ssh_config"), "w") as file:
            file.write(
                f"Port {self.port}\n"
                f"IdentityFile {self.folder}/key\n"
                f"UserKnownHostsFile {self.folder}/known_hosts\n"
            )
        self.switch = _Space(
            "ip link add switch type bridge\nip link set switch up"
        )
        for i in range(self.host_count):
            host = Host(self, i, interfaces[i % len(interfaces)])
            self.hosts.append(host)
            if docker0:
                host.add_docker0()
            host.start_sshd(self.port)

    def close(self):
        for space in self.hosts + [self.switch]:
            if space:
                space.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *ignored):
        self.close()


def _parse(arguments):
    parser = argparse.ArgumentParser(
        prog="netlab.py",
        description="Runs a command on hosts made of network namespaces.",
        epilog="The command finds NETLAB_HOSTS, NETLAB_ADDRESSES, "
        "NETLAB_SUBNET, NETLAB_SSH_PORT and NETLAB_SSH_KEY in its "
        "environment; `ssh h2` works without more.",
    )
    parser.add_argument("--hosts", type=int, default=2, metavar="N")
    parser.add_argument(
        "--rate", metavar="RATE", help="of each cable, as 10mbit"
    )
    parser.add_argument(
        "--interfaces",
        default="eth0",
        metavar="NAME,...",
        help="the hosts' interfaces, in turn",
    )
    parser.add_argument("--port", type=int, default=SSH_PORT, help="of sshd")
    parser.add_argument(
        "--docker0",
        action="store_true",
        help="also an interface that leads nowhere, on every host",
    )
    parser.add_argument(
        "--mtu", type=int, help="the largest packet that the hosts send"
    )
    parser.add_argument(
        "--each",
        action="store_true",
        help="run the command on every host at once",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        parser.error("no command; put one behind --")
    if not 1 <= options.hosts <= 200:
        parser.error("--hosts is 1 to 200")
    return options


def main(arguments):
    options = _parse(arguments)

    def end(number, frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        lab = Lab(
            hosts=options.hosts,
            rate=options.rate,
            interfaces=options.interfaces.split(","),
            port=options.port,
            docker0=options.docker0,
        )
    except LabError as error:
        print("netlab: %s" % error, file=sys.stderr)
        return 1
    with lab:
        if options.mtu:
            for host in lab.hosts:
                host.set_mtu(options.mtu)
        where = lab.hosts if options.each else lab.hosts[:1]
        running = []
        # Ctrl-C reaches the commands by themselves; wait for their end, and
        # no longer when it comes again.
        try:
            for host in where:
                running.append(host.start(options.command, stdin=None))
            statuses = [process.wait() for process in running]
        except KeyboardInterrupt:
            statuses = [128 + signal.SIGINT]
            try:
                if len(running) == len(where):
                    statuses = [process.wait(timeout=5) for process in running]
            except (KeyboardInterrupt, subprocess.TimeoutExpired):
                pass
    return max(s if s >= 0 else 128 - s for s in statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
