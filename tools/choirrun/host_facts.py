# SPDX-License-Identifier: Apache-2.0
"""What an agent (host_agent.py) tells of its host: addresses, and what of a program
and of Choir is there. Sent with it."""

import array
import fcntl
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys

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
