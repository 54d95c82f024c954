# SPDX-License-Identifier: Apache-2.0
"""The hosts of a run, as -H and --hostfile name them."""

import dataclasses
import ipaddress
import re

_SYNTAX = "[user@]host[:slots], IPv6 addresses in brackets"
_ENTRY = re.compile(
    r"(?:(?P<user>[^@\s:\[\]]+)@)?"
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))"
    r"(?::(?P<slots>\d+))?"
)
_LINE = re.compile(r"(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\d+))?")


class UsageError(Exception):
    """What was given on the command line or in a hostfile cannot be meant."""


@dataclasses.dataclass
class Host:
    """One entry: `name` as given, without user and brackets; `ranks` are those
    that run there."""

    name: str
    user: str
    slots: int
    ranks: list = dataclasses.field(default_factory=list)

    @property
    def alias(self):
        """A word for ssh and mpirun, which split names at colons."""
        return self.name.replace(":", "-") if ":" in self.name else self.name


def _parse_entry(text, where):
    match = _ENTRY.fullmatch(text)
    if not match:
        hint = ""
        if text.count(":") > 1 and "[" not in text:
            hint = "; did you mean [%s]:1?" % text
        raise UsageError(
            "%s: '%s' is not of the form %s%s" % (where, text, _SYNTAX, hint)
        )
    name = match["name"]
    if match["address"]:
        try:
            name = str(ipaddress.IPv6Address(match["address"]))
        except ValueError as error:
            raise UsageError("%s: '%s': %s" % (where, text, error)) from None
    slots = int(match["slots"] or 1)
    if slots < 1:
        raise UsageError("%s: '%s' has no slots" % (where, text))
    return Host(name, match["user"] or "", slots)


def _check_unique(hosts, where):
    seen = set()
    for host in hosts:
        if host.name in seen:
            raise UsageError(
                "%s: host %s is named twice; give it once, with the sum of "
                "its slots" % (where, host.name)
            )
        seen.add(host.name)
    return hosts


def parse_hosts(text):
    """-H: entries between commas."""
    return _check_unique([_parse_entry(e, "-H") for e in text.split(",")], "-H")


def parse_hostfile(path):
    """--hostfile: lines `host slots=n`; # begins a comment."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise UsageError(
            "--hostfile: %s: %s" % (path, error.strerror)
        ) from None
    hosts = []
    for number, line in enumerate(lines, 1):
        line = line.split("#", 1)[0].strip()
        if not line:
            continue
        where = "%s line %d" % (path, number)
        match = _LINE.fullmatch(line)
        if not match:
            raise UsageError(
                "%s: '%s' is not of the form: host slots=n" % (where, line)
            )
        host = _parse_entry(match["host"], where)
        if match["slots"]:
            host.slots = int(match["slots"])
        if host.slots < 1:
            raise UsageError("%s: '%s' has no slots" % (where, line))
        hosts.append(host)
    if not hosts:
        raise UsageError("--hostfile: %s names no host" % path)
    return _check_unique(hosts, path)


def parse_lines(text, where):
    """What a script prints: an entry of -H on each line."""
    hosts = [
        _parse_entry(line.strip(), "%s: line %d" % (where, number))
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not hosts:
        raise UsageError("%s names no host" % where)
    return _check_unique(hosts, where)


def place_ranks(hosts, count):
    """Fills the hosts in their order; those that get no rank are dropped."""
    slots = sum(host.slots for host in hosts)
    if count > slots:
        raise UsageError(
            "-np %d needs as many slots, but there are %d: %s"
            % (
                count,
                slots,
                ", ".join("%s:%d" % (h.name, h.slots) for h in hosts),
            )
        )
    rank = 0
    for host in hosts:
        end = min(rank + host.slots, count)
        host.ranks = list(range(rank, end))
        rank = end
    return [host for host in hosts if host.ranks]
