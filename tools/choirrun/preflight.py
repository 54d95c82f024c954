# SPDX-License-Identifier: Apache-2.0
"""Looks at everything that a run needs before it is started, and says what is
wrong, each in a sentence with the cure.

The stages, each over all hosts before the next: names, ssh, ways between the
hosts, program and data, links. A stage that finds problems is the last one.
"""

import concurrent.futures
import dataclasses
import ipaddress
import os
import re
import secrets
import shlex
import shutil
import socket

import mpi_versions
from host_session import HostError, Session

# Seconds without any progress in a probe of a link.
LINK_LIMIT = 6
_INTERPRETER = re.compile(r"(python|perl|ruby|bash|sh|dash|env)[\d.]*")


class Problems(Exception):
    """`sentences`: what keeps the run from starting."""

    def __init__(self, sentences):
        super().__init__("\n".join(sentences))
        self.sentences = list(sentences)


@dataclasses.dataclass
class Link:
    """From one host to another; names as the user gave them."""

    source: str
    target: str
    bits_per_second: float
    round_trip: float  # seconds


@dataclasses.dataclass
class Program:
    """What is to be run, and where it was found here."""

    path: str
    script: str  # behind an interpreter; "" for a program of its own
    arguments: list

    @classmethod
    def find(cls, command):
        path = shutil.which(command[0])
        if not path:
            raise Problems(
                [
                    "this host: there is no program %s; give its path, or "
                    "build it" % command[0]
                ]
            )
        path = os.path.abspath(path)
        script = ""
        if _INTERPRETER.fullmatch(os.path.basename(path)):
            files = [word for word in command[1:] if os.path.isfile(word)]
            script = os.path.abspath(files[0]) if files else ""
        return cls(path, script, command[1:])


@dataclasses.dataclass
class Result:
    """What the preflight found out."""

    sessions: list  # in the order of hosts
    networks: list  # CIDR of the networks between the hosts; empty: one host
    used: list  # names of interfaces that a host uses
    unused: list  # names of interfaces that no host uses
    links: list
    meeting: str  # the address of the first rank's host, as others see it
    mpi: mpi_versions.OpenMpi  # None if there is no program to start by it


def all_at_once(function, items):
    """[result or exception] of function(item), in threads."""

    def safe(item):
        try:
            return function(item)
        except HostError as error:
            return error

    pool = concurrent.futures.ThreadPoolExecutor(max(len(items), 1))
    try:
        return list(pool.map(safe, items))
    finally:
        # After an exception nobody waits for what they wait for.
        pool.shutdown(wait=False)


def stop_at_problems(results):
    """The results, if none of them is a problem."""
    bad = [str(r) for r in results if isinstance(r, HostError)]
    if bad:
        raise Problems(bad)
    return results


# ---- Names ----


def _line_of_etc_hosts(name):
    try:
        with open("/etc/hosts", encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if name in line.split("#")[0].split()[1:]:
                    return "/etc/hosts line %d, '%s'," % (number, line.strip())
    except OSError:
        pass
    return "its name service"


def _own_addresses(local):
    return {i["address"] for i in local.request("interfaces")["interfaces"]}


def locate(host, settings, own):
    """Where a host is: None for this one, else its address."""
    if host.name == "localhost" or host.name == socket.gethostname():
        return None
    address = settings.endpoint(host)[0]
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except socket.gaierror:
        # A name that only ssh knows, by ProxyCommand or the like, would be of
        # no use to the ranks.
        raise HostError(
            f"{host.name}: no host of the name {address} is known here; give "
            f"its address, or add a line '<address> {address}' to /etc/hosts"
        ) from None
    numbers = [entry[4][0] for entry in found]
    if ipaddress.ip_address(numbers[0]).is_loopback:
        if address in ("127.0.0.1", "::1"):
            return None
        raise HostError(
            f"{host.name}: the name {address} leads to {numbers[0]}, which is "
            "this host itself and of no use to others; "
            f"{_line_of_etc_hosts(address)} says so: put the host's address "
            "in the network there"
        )
    return None if numbers[0] in own else numbers[0]


# ---- Sessions ----


def open_sessions(hosts, settings, limit):
    """One per host, in order; the local one has no ssh. And one for this host
    if it is not among them: ([Session], local Session, {session: address})."""
    local = Session(None, None, limit)
    try:
        own = _own_addresses(local)
        places = all_at_once(lambda host: locate(host, settings, own), hosts)
        stop_at_problems(places)
        here = [h for h, place in zip(hosts, places) if place is None]
        if len(here) > 1:
            raise Problems(
                [
                    "%s are all this host; give it once, with the sum of the "
                    "slots" % " and ".join(h.name for h in here)
                ]
            )

        def start(entry):
            host, place = entry
            if place is None:
                local.host, local.name = host, host.name
                return local
            return Session(host, settings, limit)

        sessions = all_at_once(start, list(zip(hosts, places)))
    except BaseException:
        local.close()
        raise
    if any(isinstance(s, HostError) for s in sessions):
        for session in sessions + [local]:
            if isinstance(session, Session):
                session.close()
        stop_at_problems(sessions)
    addresses = dict(zip(sessions, places))
    return sessions, local, addresses


def check_identities(sessions):
    """Open MPI and Choir tell hosts apart by their own names."""
    problems = []
    seen = {}
    for session in sessions:
        name = session.info["host"]
        other = seen.setdefault(name, session)
        if other is session:
            continue
        problems.append(
            f"{other.name} and {session.name} both call themselves '{name}', "
            "so that their ranks would take each other's memory for shared; "
            "give each a name of its own: hostnamectl set-hostname <name> "
            "(docker run: --hostname <name>)"
        )
    if problems:
        raise Problems(problems)


# ---- Ways ----


def find_ways(sessions, local, addresses):
    """By the kernels' routes: ({(from, to): address}, {session: [interface]}).
    The address is the one by which `from` reaches `to`."""
    remote = [s for s in sessions if s is not local]
    everyone = remote + [local]
    target = {}
    problems = []
    by_peer = local.request("sources", peers=[addresses[s] for s in remote])[
        "sources"
    ]
    for session in remote:
        way = by_peer[addresses[session]]
        if "error" in way:
            problems.append(
                f"{session.name}: this host has no route to "
                f"{addresses[session]} ({way['error']}); compare "
                "`ip -brief address` on both hosts"
            )
            continue
        for other in everyone:
            if other is not session:
                target[other, session] = addresses[session]
        target[session, local] = way["address"]
    if problems:
        raise Problems(problems)
    used = {}
    for session in everyone:
        peers = {o: target[session, o] for o in everyone if o is not session}
        ways = session.request("sources", peers=sorted(set(peers.values())))
        used[session] = []
        for other, address in peers.items():
            way = ways["sources"][address]
            if "error" in way:
                problems.append(
                    f"{session.name}: it has no route to {other.name} "
                    f"({address}: {way['error']}); the hosts must share a "
                    "network, or know a gateway"
                )
            elif ipaddress.ip_address(way["address"]).is_loopback or (
                way["address"] == address
            ):
                problems.append(
                    f"{session.name}: {address}, which is to be {other.name}, "
                    f"is an address of its own ({way['name']}); name the host "
                    "by the address that its peers see"
                )
            elif way not in used[session]:
                used[session].append(way)
    if problems:
        raise Problems(problems)
    return target, used


def choose_interfaces(sessions, wanted, used):
    """--network-interfaces: those of each host that the user named, by name or
    by network (10.0.0.0/8)."""
    chosen, problems = {}, []
    for session in sessions:
        there = session.request("interfaces")["interfaces"]
        chosen[session] = []
        for word in wanted:
            for entry in there:
                if "/" in word:
                    network = ipaddress.ip_network(word, strict=False)
                    fits = ipaddress.ip_address(entry["address"]) in network
                else:
                    fits = entry["name"] == word
                # One family, the routes' own: two would be two ways.
                family = [":" in way["address"] for way in used[session]]
                if fits and (":" in entry["address"]) in family:
                    chosen[session].append(entry)
        if not chosen[session]:
            names = sorted({e["name"] for e in there} - {"lo"})
            problems.append(
                f"{session.name}: it has no network interface "
                f"{' or '.join(wanted)}; it has {', '.join(names)}; name one "
                "for each host, or leave --network-interfaces out: choirrun "
                "finds them by the routes"
            )
    if problems:
        raise Problems(problems)
    return chosen


def networks_of(interfaces):
    """The networks of all hosts' interfaces, as CIDR, each once."""
    found = []
    for entries in interfaces.values():
        for entry in entries:
            network = str(
                ipaddress.ip_network(
                    "%s/%d" % (entry["address"], entry["prefix"]), strict=False
                )
            )
            if network not in found:
                found.append(network)
    return found


def split_interfaces(interfaces):
    """([names of interfaces that a host uses], [names of the others])."""
    used = {
        entry["name"] for entries in interfaces.values() for entry in entries
    }
    there = set()
    for session in interfaces:
        for entry in session.request("interfaces")["interfaces"]:
            there.add(entry["name"])
    return sorted(used), sorted(there - used)


# ---- Program and data ----


def _copy_command(path, session):
    address, port, user = session.endpoint
    if ":" in address:
        address = "[%s]" % address
    return "scp -P %d -pr %s %s@%s:%s" % (
        port,
        shlex.quote(path),
        user,
        address,
        shlex.quote(os.path.dirname(path) + "/"),
    )


def check_mpi(everyone, answers):
    """The version of Open MPI, which all hosts need."""
    here = answers[0]
    if not here["mpi"]:
        raise Problems(
            ["this host: there is no mpirun; install Open MPI (Debian: "
             "apt-get install openmpi-bin), or do without --comm mpi"]
        )  # fmt: skip
    mpi = mpi_versions.find_version(here["mpi"])
    if not mpi:
        raise Problems(
            [
                "this host: mpirun is %s, which is neither Open MPI 4 nor 5; "
                "put one of these first on the PATH (Debian: update-"
                "alternatives --config mpirun)" % here["mpi"]
            ]
        )
    problems = []
    for session, there in zip(everyone, answers):
        if not there["mpi"] or (
            there["mpi"] == here["mpi"] and mpi.daemon not in there["daemons"]
        ):
            problems.append(
                f"{session.name}: Open MPI is missing, or not on the PATH of a "
                "shell that ssh starts; install it (Debian: apt-get install "
                "openmpi-bin)"
            )
        elif there["mpi"] != here["mpi"]:
            problems.append(
                f"{session.name}: it has {there['mpi']}, this host "
                f"{here['mpi']}; install the same version on both"
            )
    return mpi, problems


def check_programs(sessions, local, program, environment, needs_mpi):
    """The same program and libraries everywhere, and Open MPI: its version, and
    notes."""

    def ask(session):
        return session.request(
            "program",
            path=program.path,
            script=program.script,
            folder=os.getcwd(),
            environment=environment,
            daemons=mpi_versions.DAEMONS,
        )

    everyone = [local] + [s for s in sessions if s is not local]
    answers = stop_at_problems(all_at_once(ask, everyone))
    here = answers[0]
    problems, notes = [], []
    mpi = None
    if needs_mpi:
        mpi, problems = check_mpi(everyone, answers)
    for session, there in zip(everyone, answers):
        name = session.name
        if there["missing"]:
            problems.append(
                f"{name}: there is no {there['missing']}; copy it: "
                f"{_copy_command(there['missing'], session)}"
            )
            continue
        if there["lacking"]:
            problems.append(
                f"{name}: {os.path.basename(program.path)} lacks "
                f"{', '.join(there['lacking'])} there; install the same "
                "packages as here"
            )
        for kind, (path, digest) in here["files"].items():
            if kind not in there["files"]:
                problems.append(
                    f"{name}: there is no {kind} for "
                    f"{os.path.basename(program.path)}; copy it: "
                    f"{_copy_command(path, session)}"
                )
                continue
            other_path, other_digest = there["files"][kind]
            if digest != other_digest:
                problems.append(
                    f"{name}: {other_path} is not the same as {path} here "
                    f"(sha256 {other_digest[:12]}... there, {digest[:12]}... "
                    f"here); copy it: {_copy_command(path, session)}"
                )
        if not there["folder"]:
            notes.append(
                f"{name}: there is no folder {os.getcwd()}; its ranks start "
                "in the home folder, where relative paths lead elsewhere"
            )
    if problems:
        raise Problems(problems)
    return mpi, notes


def check_data(sessions, path):
    """The same data everywhere, by digest."""
    path = os.path.abspath(path)

    def ask(session):
        return session.request("data", limit=3600, path=path)

    answers = stop_at_problems(all_at_once(ask, sessions))
    problems = []
    first = None
    for session, there in zip(sessions, answers):
        if "missing" in there:
            problems.append(
                f"{session.name}: there is no {path}; put the data there, or "
                "give another folder with --data"
            )
        elif first is None:
            first = session, there
        elif there["digest"] != first[1]["digest"]:
            problems.append(
                f"{session.name}: the data in {path} are not those of "
                f"{first[0].name}: {there['files']} files, {there['bytes']} "
                f"bytes, digest {there['digest'][:12]} there; "
                f"{first[1]['files']} files, {first[1]['bytes']} bytes, "
                f"digest {first[1]['digest'][:12]} on {first[0].name}; copy "
                f"them: {_copy_command(path, session)}"
            )
    if problems:
        raise Problems(problems)


# ---- Links ----


def _pair_rounds(items):
    """All pairs in rounds in which everybody has one partner at most."""
    ring = list(items) + [None] * (len(items) % 2)
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]))
        yield [(a, b) for a, b in pairs if a is not None and b is not None]
        ring = [ring[0], ring[-1]] + ring[1:-1]


def _link_problem(source, target, address, answer, ports):
    way = f"{source.name} -> {target.name} ({address} port {answer['port']})"
    cure = (
        "open it in the firewall there for "
        f"{source.name}, or tell choirrun which ports are open with "
        "--port-range FIRST-LAST"
    )
    if answer["failed"] == "connect":
        if answer["refused"]:
            return f"{way}: refused, though an agent listens: a firewall rejects the port; {cure}"
        return (
            f"{way}: no answer ({answer['why']}): the port is filtered; {cure}"
        )
    if answer["failed"] == "small":
        return f"{way}: connected, but not even 64 bytes come back ({answer['why']}); look at the cable and the firewalls"
    text = (
        f"{way}: small messages pass, but one of {answer['bytes'] >> 10} KiB "
        "does not arrive: packets of full size are lost on the way (MTU); "
    )
    if answer["segment"]:
        return text + (
            f"those of {answer['segment'] + 40} bytes pass: ip link set dev "
            f"<interface> mtu {answer['segment'] + 40} on both hosts"
        )
    return text + "give both hosts' interfaces a smaller mtu (ip link set)"


def check_links(sessions, target, ports):
    """Both directions between any two hosts, small and large messages."""
    token = secrets.token_hex(16)
    listening = {}
    problems = []
    for session, address in sorted(
        {(peer, address) for (_, peer), address in target.items()},
        key=lambda place: (sessions.index(place[0]), place[1]),
    ):
        answer = session.request(
            "listen", address=address, ports=ports, token=token
        )
        if "error" in answer:
            free = "%d-%d" % tuple(ports) if ports else "any port"
            problems.append(
                f"{session.name}: cannot listen at {address}, {free}: "
                f"{answer['error']}; give free ports with --port-range"
            )
        else:
            listening[session, address] = answer["port"]
    if problems:
        raise Problems(problems)

    def probe(pair):
        source, peer = pair
        address = target[source, peer]
        port = listening[peer, address]
        answer = source.request(
            "link",
            limit=120,
            address=address,
            port=port,
            token=token,
            patience=LINK_LIMIT,
        )
        answer["port"] = port
        return source, peer, address, answer

    links = []
    for pairs in _pair_rounds(sessions):
        for way in (pairs, [(b, a) for a, b in pairs]):
            for result in stop_at_problems(all_at_once(probe, way)):
                source, peer, address, answer = result
                if "failed" in answer:
                    problems.append(
                        _link_problem(source, peer, address, answer, ports)
                    )
                else:
                    links.append(
                        Link(
                            source.name,
                            peer.name,
                            answer["bits_per_second"],
                            answer["round_trip"],
                        )
                    )
    if problems:
        raise Problems(problems)
    return links


# ---- All of it ----


def format_rate(bits):
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= size:
            return "%.3g %s" % (bits / size, unit)
    return "%.3g kbit/s" % (bits / 1e3)


def _describe(session, interfaces):
    where = ", ".join(
        "%s %s/%d" % (i["name"], i["address"], i["prefix"])
        for i in interfaces.get(session, [])
    )
    ranks = session.host.ranks
    text = "%s: host %s, rank%s %s, %d core%s" % (
        session.name,
        session.info["host"],
        "s" if len(ranks) > 1 else "",
        ", ".join(map(str, ranks)),
        session.info["cores"],
        "s" if session.info["cores"] > 1 else "",
    )
    return text + (", by " + where if where else "")


def run_preflight(hosts, settings, options, program, environment, tell):
    """All stages; Problems tells what to mend. The caller closes the sessions
    of the result."""
    sessions, local, addresses = open_sessions(
        hosts, settings, options.start_timeout
    )
    try:
        remote = [s for s in sessions if s is not local]
        target, interfaces, links, mpi = {}, {}, [], None
        if remote:
            check_identities(
                sessions if local in sessions else sessions + [local]
            )
            target, interfaces = find_ways(sessions, local, addresses)
            if options.network_interfaces:
                interfaces = choose_interfaces(
                    list(interfaces), options.network_interfaces, interfaces
                )
        used, unused = split_interfaces(interfaces)
        for session in sessions:
            tell(_describe(session, interfaces))
        if program:
            mpi, notes = check_programs(
                sessions, local, program, environment, options.comm == "mpi"
            )
            for note in notes:
                tell(note)
        if options.data and len(sessions) > 1:
            check_data(sessions, options.data)
        if remote:
            links = check_links(
                sessions + [local] * (local not in sessions),
                target,
                options.port_range,
            )
        for link in links:
            tell(
                "%s -> %s: %s, %.2g ms there and back"
                % (
                    link.source,
                    link.target,
                    format_rate(link.bits_per_second),
                    1e3 * link.round_trip,
                )
            )
    except BaseException as error:
        for session in set(sessions) | {local}:
            session.close()
        if isinstance(error, HostError):
            raise Problems([str(error)]) from None
        raise
    if local not in sessions:
        local.close()
    meeting = "127.0.0.1"
    if remote and options.network_interfaces:
        meeting = interfaces[sessions[0]][0]["address"]
    elif remote:
        meeting = next(
            at for (_, to), at in target.items() if to is sessions[0]
        )
    return Result(
        sessions, networks_of(interfaces), used, unused, links, meeting, mpi
    )


def _start_late(host, settings, limit, own, live):
    """The session of a host that comes to a run."""
    if locate(host, settings, own) is not None:
        return Session(host, settings, limit)
    for other in live:
        if other.is_local:
            raise HostError(
                f"{host.name} and {other.name} are both this host; give it "
                "once, with the sum of the slots"
            )
    session = Session(None, None, limit)
    session.host, session.name = host, host.name
    return session


def open_late(host, live, settings, options, program, environment):
    """A session with a host that comes to a run under way, after the looks that tell
    whether it fits to the first of `live`, the run's sessions. Problems tells what to
    mend."""
    limit = options.start_timeout
    opened = []
    try:
        local = Session(None, None, limit)
        opened.append(local)
        own = _own_addresses(local)
        session = _start_late(host, settings, limit, own, live)
        opened.append(session)
        check_identities([*live, session])
        peer = live[0]
        here = next((s for s in (session, *live) if s.is_local), local)
        addresses = {
            s: locate(s.host, settings, own)
            for s in (session, peer)
            if s is not here
        }
        target, _ = find_ways([session, peer], here, addresses)
        ways = {
            way: at for way, at in target.items() if set(way) == {session, peer}
        }
        check_links([session, peer], ways, options.port_range)
        check_programs([session], local, program, environment, False)
        if options.data:
            check_data([peer, session], options.data)
    except BaseException as error:
        for one in opened:
            one.close()
        if isinstance(error, HostError):
            raise Problems([str(error)]) from None
        raise
    local.close()
    return session
