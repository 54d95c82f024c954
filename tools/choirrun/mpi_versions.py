# SPDX-License-Identifier: Apache-2.0
"""What Open MPI 4 and 5 call things. Version 5 starts programs by PRRTE, whose
daemons, settings and words are its own; ranks find their numbers in the same
variables under both (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_SIZE)."""

import dataclasses
import os
import re

# Of --port-range.
DAEMON_PORTS = 4


@dataclasses.dataclass(frozen=True)
class OpenMpi:
    """One version's names; settings as [(option, name, value)] of mpirun."""

    major: int
    daemon: str  # what mpirun starts on every other host
    runtime: str  # the option for settings of mpirun and its daemons
    start: str  # the first letters of settings of how daemons are started
    agent: str  # the setting that names the daemon's command
    stay: str  # the daemon's option to stay the child of its starter
    shared_memory: tuple  # how ranks of a host exchange, by plain copies
    session_folder: str  # the setting for daemons: where their files are
    memory_folder: str  # that for ranks: where their shared memory is
    tag: re.Pattern  # before each line, by --tag-output: rank, stream
    noise: re.Pattern  # lines of its own that tell a user nothing

    def of_daemons(self, settings):
        return [(self.runtime, name, value) for name, value in settings]

    def of_ranks(self, settings):
        return [("--mca", name, value) for name, value in settings]

    def remote(self, shell, run):
        """How daemons are started: by `shell`, a command in place of ssh."""
        return self.of_daemons(
            [
                (self.start + "agent", shell),
                # Every daemon is started from here: the other hosts need no
                # keys.
                (self.start + "no_tree_spawn", 1),
                # The mark by which agents know the run's processes; the shell
                # becomes the daemon.
                (self.agent, "exec env CHOIR_RUN=%s %s" % (run, self.daemon)),
            ]
        )

    def attached(self, command):
        """A daemon's command, changed so that it stays the child of who started it
        and ends with the status that it has."""
        return command.replace(" --daemonize ", " %s " % self.stay)

    def local(self):
        """All on this host: no ssh, and no network where that can be said."""
        if self.major > 4:
            # Refuses lo unless there is nothing else; needs ssh for nothing.
            return []
        return self.of_daemons(
            [("plm", "isolated"), ("oob_tcp_if_include", "lo")]
        )

    def folders(self, session, memory):
        """Where Open MPI's files are, on all hosts; what the user set stays."""
        found = []
        if "OMPI_MCA_" + self.memory_folder not in os.environ:
            found += self.of_ranks([(self.memory_folder, memory)])
        prefix = "OMPI_MCA_" if self.major < 5 else "PRTE_MCA_"
        if prefix + self.session_folder not in os.environ:
            found += self.of_daemons([(self.session_folder, session)])
        return found

    def interfaces(self, networks, used, unused):
        """Networks mean the right interface on every host, whatever it is
        called there. Ranks know none of IPv6: they are told what not to take.
        `used` and `unused` are interfaces' names, of all hosts together."""
        is_ipv6 = any(":" in network for network in networks)
        take, leave = ",".join(networks), ",".join(unused)
        if is_ipv6:
            ranks = [("btl_tcp_if_exclude", leave)]
            daemons = [("oob_tcp_if_exclude", leave)]
        else:
            ranks = [("btl_tcp_if_include", take)]
            daemons = [("oob_tcp_if_include", take)]
        if self.major > 4:
            # A network that the last interface belongs to is not found by
            # daemons, and ranks pair no interfaces that have both families.
            daemons = [("prte_if_include", ",".join(used))]
            ranks.append(("btl_tcp_disable_family", 4 if is_ipv6 else 6))
        return self.of_ranks(ranks) + self.of_daemons(daemons)

    def ports(self, first, last):
        """Daemons take all the ports that they are given: the first few; a rank
        takes one, of the others."""
        ranks = first + DAEMON_PORTS
        found = []
        for family in ("4", "6"):
            daemons = "%d-%d" % (first, ranks - 1)
            found += self.of_daemons(
                [("oob_tcp_dynamic_ipv%s_ports" % family, daemons)]
            )
            found += self.of_ranks(
                [
                    ("btl_tcp_port_min_v" + family, ranks),
                    ("btl_tcp_port_range_v" + family, last - ranks + 1),
                ]
            )
        return found


VERSIONS = (
    OpenMpi(
        major=4,
        daemon="orted",
        runtime="--mca",
        start="plm_rsh_",
        agent="orte_launch_agent",
        stay="",
        shared_memory=(
            ("btl", "self,vader,tcp"),
            ("btl_vader_single_copy_mechanism", "none"),
        ),
        session_folder="orte_tmpdir_base",
        memory_folder="btl_vader_backing_directory",
        tag=re.compile(rb"\[\d+,(\d+)\]<(stdout|stderr)>:"),
        noise=re.compile(r"(?!)"),
    ),
    OpenMpi(
        major=5,
        daemon="prted",
        runtime="--prtemca",
        start="plm_ssh_",
        agent="prte_launch_agent",
        stay="--leave-session-attached",
        shared_memory=(
            ("btl", "self,sm,tcp"),
            ("smsc", "^cma,knem,xpmem"),
        ),
        session_folder="prte_tmpdir_base",
        memory_folder="btl_sm_backing_directory",
        tag=re.compile(rb"\[\d+,(\d+)\]<(stdout|stderr)>: "),
        # How ssh was started; how daemons end; interfaces that ranks of one
        # host, who need none, did not pair.
        noise=re.compile(
            r"\[[^\]]+\] plm:ssh: Warning: setpgid|"
            r"\[[^\]]+\] oob:tcp: send_msg: write failed|"
            r"\[[^\]]+\] \[prterun\S+ prte_oob_tcp_peer_send_handler: |"
            r".*Unable to find reachable pairing between local and remote"
        ),
    ),
)
DAEMONS = [version.daemon for version in VERSIONS]


def find_version(said):
    """Of `mpirun --version`'s first line; None: neither 4 nor 5."""
    found = re.search(r"\(Open MPI\) (\d+)\.", said)
    for version in VERSIONS:
        if found and version.major == int(found[1]):
            return version
    return None


# ---- Words ----

BY_SIGNAL = re.compile(
    r"process rank (\d+) with PID (\d+) on node (\S+) exited on\s+"
    r"signal (\d+)"
)
# [[34824,1],0], of version 5 [prterun-h1-38@1,0].
BY_STATUS = re.compile(
    r"Process name: \[[^\s,]*(?:,\d+\])?,(\d+)\]\s+Exit code:\s+(\d+)"
)
# A rank's host and process: Open MPI ended it in the middle of a call, as it could not
# send to a peer; mpirun says nothing about that.
ABORTED = re.compile(r"\[([^\]:]+):(\d+)\] \S*pml_ob1_\w+\.c:\d+ FATAL")
# Said before it says why.
PEER_IS_LOST = (
    "An MPI communication peer process has unexpectedly disconnected",
    "Open MPI failed to TCP connect to a peer MPI process",
    "RTE has lost communication with a remote daemon",
)
