# SPDX-License-Identifier: Apache-2.0
"""What choirrun does on each host. Sent to that host's python3 through ssh, so
that nothing has to be installed there for it to tell what is missing: only the
standard library, and no words that Python 3.6 does not know.

Requests come in as lines of JSON, answers go out as lines of JSON behind MARK;
whatever a login shell prints besides is skipped. After `watch` the agent beats
once a second and ends the run's processes here when choirrun is gone or silent.

What runs here for a run is started by a guard (process_guard.py), a small process
beside the agent, so that nothing of it stays whoever is killed.
"""

import array
import fcntl
import hashlib
import hmac
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import process_guard

MARK = "@choirrun "

_output_lock = threading.Lock()


def say(**answer):
    line = MARK + json.dumps(answer) + "\n"
    with _output_lock:
        sys.stdout.write(line)
        sys.stdout.flush()


# ---- Addresses ----

SIOCGIFCONF, SIOCGIFNETMASK, SIOCGIFMTU = 0x8912, 0x891B, 0x8921
IFREQ_BYTES = 40


def _interface_request(probe, number, name, address=b"\0\0\0\0"):
    request = struct.pack(
        "16sHH4s16x", name.encode(), socket.AF_INET, 0, address
    )
    return fcntl.ioctl(probe.fileno(), number, request)


def interfaces():
    """[{name, address, prefix, mtu}] of all addresses, as `ip addr` has them;
    iproute2 need not be there."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # An array whose address the kernel is told.
        room = array.array("B", bytes(IFREQ_BYTES * 256))
        place, _ = room.buffer_info()
        reply = fcntl.ioctl(
            probe.fileno(), SIOCGIFCONF, struct.pack("iL", len(room), place)
        )
        used = struct.unpack("iL", reply)[0]
        for at in range(0, used, IFREQ_BYTES):
            entry = room[at : at + IFREQ_BYTES].tobytes()
            name = entry[:16].split(b"\0", 1)[0].decode()
            address = entry[20:24]
            mask = _interface_request(probe, SIOCGIFNETMASK, name, address)
            bits = bin(int.from_bytes(mask[20:24], "big")).count("1")
            mtu = _interface_request(probe, SIOCGIFMTU, name)
            found.append(
                {
                    "name": name.split(":")[0],
                    "address": socket.inet_ntoa(address),
                    "prefix": bits,
                    "mtu": struct.unpack("i", mtu[16:20])[0],
                }
            )
        try:
            with open("/proc/net/if_inet6") as file:
                lines = file.read().split("\n")
        except OSError:
            lines = []
        for line in lines:
            words = line.split()
            if len(words) != 6:
                continue
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
            mtu = _interface_request(probe, SIOCGIFMTU, words[5])
            found.append(
                {
                    "name": words[5],
                    "address": address,
                    "prefix": int(words[2], 16),
                    "mtu": struct.unpack("i", mtu[16:20])[0],
                }
            )
    return found


def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def source_towards(address):
    """The address that the kernel's routes choose for packets to `address`."""
    with socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return probe.getsockname()[0]


def op_sources(request):
    """How this host reaches each of `peers`: interface, address, prefix."""
    own = interfaces()
    answer = {}
    for peer in request["peers"]:
        try:
            source = source_towards(peer)
        except OSError as error:
            answer[peer] = {"error": error.strerror}
            continue
        entry = [i for i in own if i["address"] == source]
        answer[peer] = entry[0] if entry else {"error": "no interface"}
    return {"sources": answer}


# ---- What is on this host ----


def digest_file(path, digest):
    with open(path, "rb") as file:
        while True:
            block = file.read(1 << 20)
            if not block:
                return
            digest.update(block)


def file_digest(path):
    digest = hashlib.sha256()
    digest_file(path, digest)
    return digest.hexdigest()


def first_line(command):
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.decode(errors="replace").split("\n")
    return lines[0].strip() if done.returncode == 0 else ""


def linked_libraries(program):
    """({name: path}, [names not found]) of an ELF file, by ldd."""
    try:
        done = subprocess.run(
            ["ldd", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}, []
    found, lacking = {}, []
    for line in done.stdout.decode(errors="replace").split("\n"):
        words = line.split()
        if len(words) >= 3 and words[1] == "=>":
            if words[2] == "not":
                lacking.append(words[0])
            else:
                found[words[0]] = words[2]
    return found, lacking


def choir_libraries(program, libraries, environment):
    """The files of Choir that `program` would load: the library's places in its
    order (dist/backends/mpi/mpi_world.c). Whether others could have written the
    plugin is not looked at: the library refuses it then, and says so."""
    files = {}
    folder = os.path.dirname(os.path.realpath(program))
    for name, path in libraries.items():
        if name.startswith("libchoir.so"):
            files["libchoir.so"] = path
            folder = os.path.dirname(os.path.realpath(path))
    places = [
        os.path.join(folder, place, "libchoir_mpi.so")
        for place in ("", "../lib")
    ]
    if environment.get("CHOIR_MPI_LIBRARY"):
        places = [environment["CHOIR_MPI_LIBRARY"]]
    for path in places:
        if os.path.exists(path):
            files["libchoir_mpi.so"] = path
            break
    return files


def op_program(request):
    """The program and what it needs: {files: {name: [path, digest]}, lacking:
    [names], missing: path or "", folder: is it there}."""
    path = request["path"]
    os.environ.update(request["environment"])
    answer = {
        "folder": os.path.isdir(request["folder"]),
        "daemons": [name for name in request["daemons"] if shutil.which(name)],
        "mpi": first_line(["mpirun", "--version"]),
        "files": {},
        "lacking": [],
        "missing": "",
    }
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        answer["missing"] = path
        return answer
    libraries, answer["lacking"] = linked_libraries(path)
    files = choir_libraries(path, libraries, os.environ)
    if request["script"]:
        files["script"] = request["script"]
    else:
        files["program"] = path
    for name, file in files.items():
        if not os.path.isfile(file):
            answer["missing"] = file
        else:
            answer["files"][name] = [file, file_digest(file)]
    return answer


def op_data(request):
    """One digest over names and contents of all files below a folder."""
    path = request["path"]
    if not os.path.exists(path):
        return {"missing": True}
    names = []
    for folder, folders, files in os.walk(path, followlinks=True):
        folders.sort()
        names += [os.path.join(folder, name) for name in files]
    if os.path.isfile(path):
        names = [path]
    digest = hashlib.sha256()
    total = 0
    for name in sorted(names):
        digest.update(os.path.relpath(name, path).encode() + b"\0")
        digest.update(b"%d\0" % os.path.getsize(name))
        digest_file(name, digest)
        total += os.path.getsize(name)
    return {"digest": digest.hexdigest(), "files": len(names), "bytes": total}


# Run by a python3 of its own: a library that crashes takes nothing with it.
BUILD_PROBE = r"""
import ctypes, json, re, sys
choir = ctypes.CDLL(sys.argv[1])
for name in ("choir_version", "choir_status_message", "choir_device_kernels"):
    getattr(choir, name).restype = ctypes.c_char_p
for name in ("choir_device_create", "choir_comm_create"):
    getattr(choir, name).restype = ctypes.c_void_p
choir.choir_device_threads.restype = ctypes.c_int32
class Gpu(ctypes.Structure):  # choir_gpu_info_t
    _fields_ = [("name", ctypes.c_char * 96), ("major", ctypes.c_int32),
                ("minor", ctypes.c_int32), ("is_supported", ctypes.c_bool),
                ("total_bytes", ctypes.c_uint64)]
class Part(ctypes.Structure):  # choir_gpu_part_t
    _fields_ = [("name", ctypes.c_char_p), ("version", ctypes.c_char * 32)]
for name in ("driver_version", "count", "info", "part"):
    getattr(choir, "choir_gpu_" + name).restype = ctypes.c_void_p
choir.choir_gpu_part_count.restype = ctypes.c_int32
choir.choir_comm_nccl_version.restype = ctypes.c_void_p
def why_not(status):
    if not status:
        return ""
    return choir.choir_status_message(ctypes.c_void_p(status)).decode()
def create_device(name):
    device = ctypes.c_void_p()
    why = why_not(choir.choir_device_create(
        name.encode(), None, ctypes.byref(device)))
    if why:
        return "no: " + why
    return "%s kernels, %d threads" % (
        choir.choir_device_kernels(device).decode(),
        choir.choir_device_threads(device))
def ask_driver():
    number = ctypes.c_int32()
    why = why_not(choir.choir_gpu_driver_version(ctypes.byref(number)))
    return why and "no: " + why or "for CUDA %d.%d" % (
        number.value // 1000, number.value % 1000 // 10)
def ask_nccl():
    number = ctypes.c_int32()
    why = why_not(choir.choir_comm_nccl_version(ctypes.byref(number)))
    return why and "no: " + why or "%d.%d.%d" % (
        number.value // 10000, number.value // 100 % 100, number.value % 100)
def ask_gpus():
    count, found = ctypes.c_int32(), []
    choir.choir_gpu_count(ctypes.byref(count))
    for i in range(count.value):
        gpu = Gpu()
        why = why_not(choir.choir_gpu_info(i, ctypes.byref(gpu)))
        found.append(why or "%s, compute capability %d.%d, %.1f GiB%s" % (
            gpu.name.decode(), gpu.major, gpu.minor, gpu.total_bytes / 2**30,
            "" if gpu.is_supported else ", too old"))
    return found
def ask_part(i):
    part = Part()
    why = why_not(choir.choir_gpu_part(i, ctypes.byref(part)))
    return part.name.decode(), (
        why and "no: " + why or part.version.decode() or "yes")
known = create_device("?").rsplit(" known", 1)[-1].rsplit(":", 1)[-1]
names = [n for n in re.findall(r"[a-z_]+", known) if n not in ("are", "devices")]
print(json.dumps({"version": choir.choir_version().decode(),
                  "devices": {n: create_device(n) for n in names},
                  "nccl": ask_nccl(), "driver": ask_driver(), "gpus": ask_gpus(),
                  "parts": [ask_part(i)
                            for i in range(choir.choir_gpu_part_count())]}))
"""


def op_build(request):
    """Versions, backends and devices of the Choir at `library`."""
    answer = {
        "mpi": first_line(["mpirun", "--version"]),
        "library": "",
    }
    library = request["library"]
    if library and os.path.exists(library):
        answer["library"] = library
        answer["digest"] = file_digest(library)
        done = subprocess.run(
            [sys.executable, "-c", BUILD_PROBE, library],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
        )
        if done.returncode == 0:
            answer.update(json.loads(done.stdout.decode()))
        else:
            lines = done.stderr.decode(errors="replace").strip().split("\n")
            answer["error"] = lines[-1]
        plugin = os.path.join(os.path.dirname(library), "libchoir_mpi.so")
        if os.path.exists(plugin):
            answer["plugin"] = plugin
            answer["plugin_lacks"] = linked_libraries(plugin)[1]
    return answer


# ---- Links ----

TOKEN_BYTES = 32
HEAD = struct.Struct("!cQ")  # b"e": send back so much; b"s": take and say when
LARGE = 256 << 10
LARGEST = 64 << 20
ENOUGH_SECONDS = 0.15
# Sizes of packets to try when full ones do not arrive, without 40 bytes of
# headers.
SMALLER_SEGMENTS = (1360, 1160, 960, 536)


def receive(connection, count):
    data = bytearray()
    while len(data) < count:
        block = connection.recv(min(count - len(data), 1 << 16))
        if not block:
            raise OSError("closed by the other side")
        data += block
    return bytes(data)


def serve(connection, token):
    with connection:
        connection.settimeout(30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if not hmac.compare_digest(receive(connection, TOKEN_BYTES), token):
                return
            while True:
                kind, count = HEAD.unpack(receive(connection, HEAD.size))
                if kind == b"e":
                    connection.sendall(receive(connection, count))
                else:
                    left = count
                    while left:
                        block = connection.recv(min(left, 1 << 18))
                        if not block:
                            return
                        left -= len(block)
                    connection.sendall(b"!")
        except OSError:
            pass


def bind(listener, address, ports):
    """To a free port of `ports`, or any where that is None."""
    first, last = ports or (0, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for port in range(first, last + 1):
        try:
            listener.bind((address, port))
            return
        except OSError as error:
            why = error
    listener.close()
    raise why


def op_listen(request):
    """Listens for probes of other agents."""
    address = request["address"]
    listener = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        bind(listener, address, request["ports"])
    except OSError as error:
        return {"error": error.strerror}
    listener.listen(16)
    token = request["token"].encode()

    def accept():
        while True:
            connection, _ = listener.accept()
            threading.Thread(
                target=serve, args=(connection, token), daemon=True
            ).start()

    threading.Thread(target=accept, daemon=True).start()
    return {"port": listener.getsockname()[1]}


def connect(request, segment=0):
    connection = socket.socket(
        family_of(request["address"]), socket.SOCK_STREAM
    )
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if segment:
            connection.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment
            )
        connection.settimeout(request["patience"])
        connection.connect((request["address"], request["port"]))
        connection.sendall(request["token"].encode())
    except BaseException:
        connection.close()
        raise
    return connection


def push(connection, count):
    """Seconds until the other side has taken `count` bytes."""
    start = time.monotonic()
    connection.sendall(HEAD.pack(b"s", count))
    block = b"\xa5" * min(count, 1 << 18)
    left = count
    while left:
        left -= connection.send(block[: min(left, len(block))])
    receive(connection, 1)
    return time.monotonic() - start


def passing_segment(request):
    for segment in SMALLER_SEGMENTS:
        try:
            with connect(dict(request, patience=2), segment) as connection:
                push(connection, LARGE // 8)
                return segment
        except OSError:
            pass
    return 0


def op_link(request):
    """Small and large messages from here to another agent: {round_trip,
    bits_per_second}, or {failed: "connect" | "small" | "large", why, ...}."""
    try:
        connection = connect(request)
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        return {
            "failed": "connect",
            "refused": refused,
            "why": error.strerror or "no answer",
        }
    with connection:
        try:
            trips = []
            for _ in range(10):
                start = time.monotonic()
                connection.sendall(HEAD.pack(b"e", 64) + b"." * 64)
                receive(connection, 64)
                trips.append(time.monotonic() - start)
        except OSError as error:
            return {"failed": "small", "why": str(error)}
        try:
            count = LARGE
            # What queues on the way take at once, the first one fills.
            push(connection, count)
            seconds = push(connection, count)
            while seconds < ENOUGH_SECONDS and count < LARGEST:
                count *= 4
                seconds = push(connection, count)
        except OSError as error:
            return {
                "failed": "large",
                "bytes": count,
                "why": str(error),
                "segment": passing_segment(request),
            }
    trip = min(trips)
    return {
        "round_trip": trip,
        "bits_per_second": 8 * count / max(seconds - trip, 1e-9),
    }


# ---- The run ----


# How long a process may take from one program to the next.
EXEC_SECONDS = 0.05


def environment(pid):
    """The variables of a process, each as NAME=value. Empty where it has none, or
    none yet as it is in the middle of an exec; None: it is gone or another
    user's."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            text = file.read()
    except OSError:
        return None
    return text.split(b"\0") if text else []


def rank_in(words, run):
    """(whether a process with this environment belongs to `run`, its rank of Open
    MPI's or None)."""
    # $CHOIR_RUN: not for users: as CHOIR_LAUNCH, in the processes of choirrun.
    mark = b"CHOIR_RUN=" + run.encode()
    rank = None
    for word in words or ():
        if word.startswith(b"OMPI_COMM_WORLD_RANK="):
            rank = int(word.split(b"=")[1])
    return mark in (words or ()), rank


def runs_a_program(pid):
    """Threads of the kernel and what only waits to be reaped do not."""
    try:
        return bool(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return False


def run_processes(run):
    """{pid: rank or None} of the processes that belong to `run`."""
    found = {}
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    end = time.monotonic() + EXEC_SECONDS
    while True:
        empty = []
        for pid in pids:
            words = environment(pid)
            is_of_run, rank = rank_in(words, run)
            if is_of_run and pid != os.getpid():
                found[pid] = rank
            if words == [] and runs_a_program(pid):
                empty.append(pid)
        if not empty or time.monotonic() > end:
            return found
        pids = empty
        time.sleep(0.001)


def first_processes(found, run):
    """{rank: id of the process that a daemon of Open MPI started as this rank, or
    None where that one is gone and what it started is left}."""
    first = {}
    for pid, rank in found.items():
        there = process_guard.stat(pid)
        if rank is None or not there:
            continue
        # A rank that was still its daemon's fork when it was looked at can have
        # started this one meanwhile.
        while rank_in(environment(there[2]), run)[1] == rank:
            pid = there[2]
            there = process_guard.stat(pid) or ("", "", 0)
        if found.get(there[2], rank) is None:
            first[rank] = pid
        else:
            first.setdefault(rank, None)
    return first


def process_state(pid):
    """The letter of ps, or "" when it is gone or only waits to be reaped."""
    there = process_guard.stat(pid)
    return "" if not there or there[1] in "ZX" else there[1]


def end_run(run, ranks_only=False):
    """Ends all processes of the run here, also those that start meanwhile; or ranks
    and what they started."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = [
            pid
            for pid, rank in run_processes(run).items()
            if rank is not None or not ranks_only
        ]
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not found:
            return
        time.sleep(process_guard.PASS_SECONDS)


class Watch(threading.Thread):
    """Tells when the run comes to this host, when ranks start, stop and end;
    beats; notices a silent choirrun."""

    INTERVAL = 0.25
    BEAT_SECONDS = 1.0
    SCAN_SECONDS = 1.0

    def __init__(self, run, silence):
        super().__init__(daemon=True)
        self.run_name = run
        self.silence = silence
        self.heard = time.monotonic()
        self.is_present = False
        self.ranks = {}  # rank: [pid, state]

    def run(self):
        beat = scan = 0
        while time.monotonic() - self.heard < self.silence:
            now = time.monotonic()
            if now - scan >= self.SCAN_SECONDS or not self.ranks:
                scan = now
                found = run_processes(self.run_name)
                if found and not self.is_present:
                    self.is_present = True
                    say(event="present")
                for rank, pid in first_processes(found, self.run_name).items():
                    if rank not in self.ranks:
                        self.add(rank, pid)
            for rank, entry in list(self.ranks.items()):
                state = process_state(entry[0])
                word = {"": "gone", "T": "stopped"}.get(state, "started")
                if word != entry[1]:
                    entry[1] = word
                    say(event=word, rank=rank, pid=entry[0])
            if now - beat >= self.BEAT_SECONDS:
                beat = now
                say(event="beat")
            time.sleep(self.INTERVAL)
        # choirrun, or the way to it, is gone.
        end_run(self.run_name)
        os._exit(1)

    def add(self, rank, pid):
        """pid: None where only what it started is left."""
        word = "started" if pid else "gone"
        self.ranks[rank] = [pid or 0, word]
        say(event=word, rank=rank, pid=pid)


watch = None
guard = None
rendezvous = None  # the socket at which ranks meet
is_guarded = True
spawned = {}  # pid: id of the request
own_ranks = {}  # id of the request: the rank that it starts
settling = set()  # ids of requests


def on_guard_event(event):
    """Tells of what was started here for the run, and how it ended."""
    global is_guarded
    kind = event["event"]
    if kind == "started":
        spawned[event["pid"]] = event["id"]
        if event["id"] in own_ranks:
            watch.add(own_ranks[event["id"]], event["pid"])
    elif kind == "not started":
        say(answer=event["id"], failure=event["why"])
    elif kind == "ended":
        request = spawned.pop(event["pid"], None)
        if not event["was_signalled"]:
            say(**event)
        if request is not None:
            say(answer=request, status=event["status"])
    elif kind == "settled":
        answer_settled(event["id"])
    else:
        if event["status"]:
            say(event="guard over", status=event["status"])
        is_guarded = False
        for request in list(settling):
            answer_settled(request)


def answer_settled(request):
    """Once, whichever thread comes first."""
    try:
        settling.remove(request)
    except KeyError:
        return
    say(answer=request)


def op_settle(request):
    """The answer comes when all has been told that ended here for the run by now."""
    settling.add(request["id"])
    guard.settle(request["id"])
    if not is_guarded:
        answer_settled(request["id"])
    return None


def op_watch(request):
    global watch
    watch = Watch(request["run"], request["silence"])
    watch.start()
    return {}


def op_folders(request):
    """Makes folders that go with the run: {made: whether all of them are there
    and this user's alone}."""
    for path in request["paths"]:
        is_own = True
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            is_own = False
        except OSError:
            return {"made": False}
        there = os.lstat(path)
        is_private = there.st_uid == os.getuid() and not there.st_mode & 0o077
        if not is_private or not os.path.isdir(path):
            return {"made": False}
        guard.remove_at_end(path, is_own)
    return {"made": True}


def pass_on(reader, tell):
    """Calls `tell` with each line that comes from a pipe, and with None at its end."""

    def read():
        with open(reader, errors="surrogateescape", newline="\n") as lines:
            for line in lines:
                tell(line)
        tell(None)

    threading.Thread(target=read, daemon=True).start()


def op_spawn(request):
    """Runs a shell's command line; the answer comes at its end. What it says
    meanwhile comes as events."""
    reader, writer = os.pipe()
    command = ["sh", "-c", request["command"]]
    guard.start(request["id"], command, {}, writer, writer)
    os.close(writer)

    def tell(line):
        if line is not None:
            say(event="said", id=request["id"], text=line)

    pass_on(reader, tell)
    return None


def op_rendezvous(request):
    """Opens the port at which ranks meet, for the first one to inherit."""
    global rendezvous
    try:
        rendezvous = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        rendezvous.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bind(rendezvous, "::", request["ports"])
    except OSError:  # a host without IPv6
        rendezvous = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        bind(rendezvous, "0.0.0.0", request["ports"])
    rendezvous.listen(socket.SOMAXCONN)
    return {"port": rendezvous.getsockname()[1]}


def op_rank(request):
    """Runs a rank; the answer comes at its end. What it prints comes as events,
    also behind that, as what it started may print, too; None is a stream's end.
    """
    pipes = [os.pipe(), os.pipe()]
    # In the home folder where the other is not there.
    enter = 'cd -- "$0" 2>/dev/null || cd; exec "$@"'
    command = ["sh", "-c", enter, request["folder"], *request["command"]]
    environment = request["environment"]
    more = []
    if request["rank"] == 0:
        more = [rendezvous.fileno()]
        environment["CHOIR_RENDEZVOUS_FD"] = "3"
    writers = [writer for _, writer in pipes]
    own_ranks[request["id"]] = request["rank"]
    guard.start(request["id"], command, environment, *writers, *more)
    if request["rank"] == 0:
        rendezvous.close()
    for stream, (reader, writer) in enumerate(pipes, 1):
        os.close(writer)
        what = {"event": "output", "rank": request["rank"], "stream": stream}
        pass_on(reader, lambda line, what=what: say(text=line, **what))
    return None


def op_signal(request):
    guard.signal(request["number"])
    return None


def op_end(request):
    if request["ranks_only"]:
        guard.end_orphans()
    else:
        guard.end()
    end_run(request["run"], request["ranks_only"])
    return None


def op_beat(_request):
    watch.heard = time.monotonic()
    return None


OPS = {
    "sources": op_sources,
    "interfaces": lambda request: {"interfaces": interfaces()},
    "program": op_program,
    "data": op_data,
    "build": op_build,
    "listen": op_listen,
    "link": op_link,
    "watch": op_watch,
    "folders": op_folders,
    "settle": op_settle,
    "spawn": op_spawn,
    "rendezvous": op_rendezvous,
    "rank": op_rank,
    "signal": op_signal,
    "end": op_end,
    "beat": op_beat,
}


def handshake():
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    say(
        event="handshake",
        host=socket.gethostname(),
        pid=os.getpid(),
        boot=boot,
        # $USER: the user's name in what agents say. Not set: the user's number.
        user=os.environ.get("USER", str(os.getuid())),
        python=platform.python_version(),
        system=platform.platform(),
        cores=len(os.sched_getaffinity(0)),
    )


def main(lines):
    global guard
    guard = process_guard.Guard()
    guard.listen(on_guard_event)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handshake()
    try:
        for line in lines:
            request = json.loads(line.decode())
            try:
                answer = OPS[request["op"]](request)
            except Exception as error:  # pylint: disable=broad-except
                answer = {"failure": "%s: %s" % (type(error).__name__, error)}
            if answer is not None:
                say(answer=request["id"], **answer)
    except OSError:
        pass
    # choirrun closed the connection: by its end, or a part of it.
    if watch:
        time.sleep(2)
        end_run(watch.run_name)
