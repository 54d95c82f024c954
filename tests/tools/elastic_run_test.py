# SPDX-License-Identifier: Apache-2.0
"""Elastic runs of tools/choirrun without a host: the command line, the list of hosts,
and where workers are started. Between hosts: tests/netlab."""

import contextlib
import io
import os
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.abspath("tools/choirrun"))

import choirrun  # noqa: E402
import elastic_run  # noqa: E402
import host_agent  # noqa: E402
import host_list  # noqa: E402
import host_session  # noqa: E402
import host_watch  # noqa: E402
import preflight  # noqa: E402


class CommandLineTest(unittest.TestCase):
    def script(self, text):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "script")
        with open(path, "w") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(path, 0o755)
        return path

    def test_numbers(self):
        """(-np, --min-np, --max-np, hosts that are begun with)"""
        for words, found in (
            ("--min-np 2 -H a:3,b:4", (7, 2, 7, ["a", "b"])),
            ("--min-np 2 --max-np 4 -H a:3,b:4,c", (4, 2, 4, ["a", "b"])),
            ("-np 3 --max-np 9 -H a:3,b:4", (3, 1, 9, ["a"])),
            ("-np 2 --min-np 1", (2, 1, 2, ["localhost"])),
            ("--min-np 2", (2, 2, 2, ["localhost"])),
            ("--max-np 3", (3, 1, 3, ["localhost"])),
        ):
            options, hosts = choirrun.parse(words.split() + ["true"])
            self.assertTrue(choirrun.is_elastic(options))
            self.assertEqual(
                (options.np, options.min_np, options.max_np,
                 [host.name for host in hosts]), found, words
            )  # fmt: skip
        options, _ = choirrun.parse(["-np", "2", "true"])
        self.assertFalse(choirrun.is_elastic(options))

    def test_script(self):
        path = self.script("echo 'a:2'; echo; echo ' me@b '")
        options, hosts = choirrun.parse(
            ["--host-discovery-script", path, "-np", "2", "true"]
        )
        self.assertEqual([host.name for host in hosts], ["a"])
        self.assertEqual(
            [(h.user, h.name, h.slots, h.ranks) for h in options.listed],
            [("", "a", 2, []), ("me", "b", 1, [])],
        )
        self.assertEqual((options.min_np, options.max_np), (1, 2))

    def test_mistakes(self):
        script = self.script
        for words, sentence in (
            (["--min-np", "3", "-np", "2"], "--min-np 3, -np 2, --max-np 2: "),
            (["--max-np", "1", "-np", "2"], "--min-np 1, -np 2, --max-np 1: "),
            (["--min-np", "0", "-np", "2"], "--min-np 0, -np 2, --max-np 2: "),
            (["--min-np", "2", "-np", "3", "-H", "a"], "-np 3 needs as many"),
            (["--min-np", "2", "--comm", "mpi"], "--min-np is not for --comm mpi"),
            (["--elastic-timeout", "2", "-np", "1"], "is for elastic runs"),
            (["--elastic-timeout", "0", "--min-np", "1"], "must be above 0"),
            (["--host-discovery-script", "/none"], "/none: No such file"),
            (["--host-discovery-script", script("echo no >&2; exit 3")],
             "ended with status 3: no"),
            (["--host-discovery-script", script("echo a b")],
             "line 1: 'a b' is not of the form [user@]host[:slots]"),
            (["--host-discovery-script", script("")], "names no host"),
            (["--host-discovery-script", script("sleep 1000"),
              "--start-timeout", "0.1"], "was not done within 0.1 s"),
            (["--host-discovery-script", script("echo a"), "-H", "a"],
             "not both"),
        ):  # fmt: skip
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                status = choirrun.main([*words, "true"])
            self.assertEqual(status, 2)
            self.assertIn(sentence, err.getvalue())
            self.assertEqual(err.getvalue().count("\n"), 1)


class HostWatchTest(unittest.TestCase):
    def test_what_is_seen_twice(self):
        a, b = host_list.parse_hosts("a"), host_list.parse_hosts("a,b")
        bad = host_list.UsageError("bad")
        reads = [a, b, a, b, b, b, bad, a, bad, bad, bad, b, b, a, a]
        end = OSError()  # of the thread
        with mock.patch.object(host_watch.time, "sleep"):
            watch = host_watch.HostWatch(
                mock.Mock(side_effect=[*reads, end]), a
            )
            with self.assertRaises(OSError):
                watch._run()
        self.assertEqual([watch.poll() for _ in range(4)], [b, "bad", a, None])


class SettingsTest(unittest.TestCase):
    def test_hosts_that_come(self):
        with tempfile.TemporaryDirectory() as folder:
            settings = host_session.Settings(
                folder, host_list.parse_hosts("me@a,b")
            )
            settings.add(host_list.parse_hosts("you@a")[0])
            settings.add(host_list.parse_hosts("him@[fd77::3]")[0])
            with open(settings.path) as file:
                text = file.read()
        self.assertNotIn("User me", text)
        head = text.split("Host *")[0]
        self.assertIn("Host a\nUser you\n", head)
        self.assertIn("Host fd77--3\nHostName fd77::3\nUser him\n", head)


class PlacingTest(unittest.TestCase):
    """ElasticRun with sessions that only note what they are asked."""

    def begin(self, hosts, **numbers):
        options = types.SimpleNamespace(
            **dict({"min_np": 1, "elastic_timeout": 50}, **numbers),
            network_interfaces=[],
        )
        listed = host_list.parse_hosts(hosts)
        options.listed = host_list.parse_hosts(hosts)
        placed = host_list.place_ranks(listed, options.np)
        sessions = [self.session(host) for host in placed]
        self.run = elastic_run.ElasticRun(
            None, None, placed,
            types.SimpleNamespace(sessions=sessions, meeting="10.0.0.1"),
            options, None, {}, mock.Mock(),
        )  # fmt: skip
        self.said = []
        self.opened = []
        self.run.say = self.said.append
        self.run.run_newcomer = lambda *_: None
        self.run.open_host = self.open_host
        self.run.take_list(options.listed)
        self.now = time.monotonic()
        self.take_part()

    def session(self, host):
        session = mock.Mock(
            info={"host": "the-" + host.name, "system": "Debian"}, is_over=False
        )
        session.host, session.name = host, host.name
        session.heard = time.monotonic()
        session.how_it_ended.return_value = "the agent was killed", 9
        return session

    def open_host(self, place):
        self.opened.append(place.host.name)
        place.is_opening = True
        self.run.arrivals.append((place, self.session(place.host), ""))

    def take_part(self):
        for worker in self.run.running():
            self.run.note(
                worker.session, {"event": "member", "rank": worker.rank}
            )

    def end(self, **statuses):
        for rank, status in statuses.items():
            self.run.over[int(rank[1:])] = status
        self.pass_by()

    def pass_by(self, seconds=0):
        self.now += seconds
        self.run.check(self.now, self.run.say)

    def where(self):
        return {p.host.name: p.host.ranks for p in self.run.places}

    def test_a_killed_worker(self):
        self.begin("a:2,b:2,c", np=3, max_np=3)
        self.pass_by()
        self.assertEqual(self.where(), {"a": [0, 1], "b": [2], "c": []})
        # On its host, though another has a slot, too.
        self.end(r0=9)
        self.assertEqual(self.where(), {"a": [1, 3], "b": [2], "c": []})
        self.assertEqual(
            self.said,
            ["rank 0 (host a) was killed by signal 9 (Killed); 2 workers go on",
             "rank 3 is started on host a"],
        )  # fmt: skip
        # The next one has not come yet, and is not the last member.
        self.take_part()
        self.end(r1=11, r2=9)
        self.assertEqual(self.where(), {"a": [3, 4], "b": [5], "c": []})
        self.assertIsNone(self.run.status)

    def test_more_slots(self):
        self.begin("a:2,b:2,c:4", np=2, max_np=5)
        self.pass_by()
        self.assertEqual(self.opened, ["b", "c"])
        self.pass_by()
        self.assertEqual(self.where(), {"a": [0, 1], "b": [2, 3], "c": [4]})

    def test_a_lost_host(self):
        self.begin("a:2,b:2", np=4, max_np=4)
        session = self.run.places[1].session
        self.run.note(session, None)
        self.assertEqual(
            self.said,
            ["host b (ranks 2 and 3) was lost: the agent was killed; 2 workers "
             "go on"],
        )  # fmt: skip
        self.end(r2=None, r3=None)
        self.assertEqual(self.opened, [])
        self.pass_by(elastic_run.LOST_AGAIN_SECONDS + 1)
        self.pass_by()
        self.assertEqual(self.where(), {"a": [0, 1], "b": [4, 5]})
        self.assertEqual(self.said[1:2], ["host b is back"])
        # The rest of it.
        self.run.note(self.run.places[1].session, None)
        self.run.note(self.run.places[0].session, None)
        self.pass_by()
        self.assertFalse(self.run.verdict.failed)
        self.pass_by(2 * elastic_run.UNSURE_SECONDS)
        self.assertEqual(
            self.run.verdict.lost,
            ("host a (ranks 0 and 1) was lost: the agent was killed", 9),
        )

    def test_a_lost_host_before_members_are_known(self):
        self.begin("a,b", np=2, max_np=2)
        for worker in self.run.running():
            worker.is_member = False
        self.run.note(self.run.places[1].session, None)
        self.pass_by()
        self.assertEqual(self.said, [])
        self.take_part()
        self.pass_by()
        self.assertEqual(
            self.said,
            [
                "host b (rank 1) was lost: the agent was killed; 1 worker goes on"
            ],
        )

    def test_those_that_end_well(self):
        self.begin("a:2,b", np=3, max_np=3, min_np=2)
        self.end(r0=0)
        self.pass_by()
        self.assertEqual(self.where(), {"a": [1], "b": [2]})
        self.run.well_since -= 2 * elastic_run.END_WELL_SECONDS
        self.pass_by()
        # Its slot is not used unless too few are left.
        self.assertEqual(self.where(), {"a": [1], "b": [2]})
        self.assertEqual(
            self.said, ["rank 0 (host a) has left; 2 workers go on"]
        )
        self.end(r1=0)
        self.run.well_since -= 2 * elastic_run.END_WELL_SECONDS
        self.pass_by()
        self.assertEqual(self.where(), {"a": [3], "b": [2]})
        # Nobody takes this one in any more.
        self.end(r2=0)
        self.run.well_since -= 2 * elastic_run.END_WELL_SECONDS
        self.pass_by()
        self.assertTrue(self.run.workers[3].is_asked)
        self.run.open_streams.clear()
        self.end(r3=9)
        self.assertEqual(self.run.status, 0)

    def test_a_failure(self):
        self.begin("a:2", np=2, max_np=2)
        self.end(r1=3 << 8)
        self.assertEqual(self.run.verdict.by_status, (1, 3))
        self.assertTrue(self.run.verdict.failed)

    def test_the_last_one(self):
        self.begin("a:2", np=2, max_np=2)
        self.end(r1=9, r0=9)
        self.assertEqual(self.run.verdict.by_signal, (1, 9))

    def test_before_there_are_members(self):
        self.begin("a:2", np=2, max_np=2)
        for worker in self.run.running():
            worker.is_member = False
        self.end(r1=9)
        self.assertFalse(self.run.verdict.failed)
        self.run.unsure_since -= 2 * elastic_run.UNSURE_SECONDS
        self.end(r0=1 << 8)
        self.assertEqual(self.run.verdict.by_signal, (1, 9))

    def test_newcomers_in_vain(self):
        self.begin("a:2", np=1, max_np=2)
        self.pass_by()
        for rank in range(1, 1 + elastic_run.MOST_VAIN):
            self.assertEqual(self.where(), {"a": [0, rank]})
            self.end(**{"r%d" % rank: 1 << 8})
        self.assertEqual(self.where(), {"a": [0]})
        self.assertIn(
            "rank 1 (host a) ended with exit status 1 before it took part; 1 "
            "worker goes on", self.said
        )  # fmt: skip
        self.assertEqual(
            self.said[-1],
            "host a: 3 workers in a row have ended before they took part; "
            "nothing is started there until its entry changes, or for 5 minutes",
        )

    def test_a_list_that_changes(self):
        self.begin("a,b", np=2, max_np=2)
        session = self.run.places[1].session
        self.run.take_list(host_list.parse_hosts("a,c"))
        self.pass_by()
        session.signal_run.assert_called_once_with(15)
        self.assertEqual(
            self.said[0],
            "host b is not listed any more; rank 1 is asked to leave",
        )
        self.end(r1=143 << 8)
        self.assertIn("rank 1 (host b) has left; 1 worker goes on", self.said)
        self.pass_by()
        self.assertEqual(self.where(), {"a": [0], "c": [2]})
        self.assertIsNone(self.run.verdict.lost)

    def test_a_refused_host(self):
        self.begin("a,b", np=1, max_np=2)
        place = self.run.places[1]
        place.is_opening = True
        self.run.arrivals = [(place, None, "b: it is wrong; mend it")]
        self.pass_by()
        self.pass_by()
        self.assertEqual(self.opened, [])
        self.run.take_list(host_list.parse_hosts("a,b:2"))
        self.pass_by()
        self.assertEqual(self.opened, ["b"])

    def test_too_few(self):
        self.begin("a:2", np=2, max_np=2, min_np=2)
        self.run.refuse(self.run.places[0], "")
        self.end(r1=9)
        self.pass_by(49)
        self.assertFalse(self.run.verdict.failed)
        self.pass_by(2)
        self.assertEqual(
            self.run.verdict.lost,
            ("1 worker, fewer than --min-np 2, for 50 s", 0),
        )


class MembersTest(unittest.TestCase):
    def test_which_ranks_are_members(self):
        said = []
        with mock.patch.object(host_agent, "guard", mock.Mock()), \
             mock.patch.object(host_agent, "say", lambda **e: said.append(e)), \
             tempfile.TemporaryDirectory() as folder, \
             mock.patch.dict(os.environ, TMPDIR=folder), \
             mock.patch.object(tempfile, "tempdir", None):  # fmt: skip
            members = host_agent.Members()
            members.own = {"10.0.0.1", "fd77::1"}
            # A process whose parent is the rank; another host's of the same id;
            # and what another version may write.
            child, parent = os.getpid(), os.getppid()
            ranks = {3: [parent, "started"], 4: [1 << 30, "started"]}
            members.tell(ranks)
            members.write("10.0.0.2:7 %d\n[fd77::1]:8 \n" % (1 << 30))
            members.tell(ranks)
            self.assertEqual(said, [])
            for _ in range(2):
                members.write("[fd77::1]:8 %d\n10.0.0.1:9 2\n" % child)
                members.tell(ranks)
        self.assertEqual(said, [{"event": "member", "rank": 3}])


class LateTest(unittest.TestCase):
    def test_this_host_twice(self):
        local = mock.Mock(is_local=True)
        local.name = "h1"
        host = host_list.parse_hosts("localhost")[0]
        with self.assertRaisesRegex(
            host_session.HostError, "localhost and h1 are both this host"
        ):
            preflight._start_late(host, None, 1, set(), [local])


if __name__ == "__main__":
    unittest.main(verbosity=2)
