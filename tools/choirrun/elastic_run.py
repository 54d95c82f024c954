# SPDX-License-Identifier: Apache-2.0
"""A run whose workers come and go (docs/elastic.md). They agree among themselves on who
they are; choirrun starts them, others in place of those that are lost, and more on hosts
that are added.

Numbers of workers (CHOIR_RANK) are never used twice, so that output and sentences tell
them apart; ranks of the program's own are the members' to say."""

import ipaddress
import os
import signal
import threading
import time

import preflight
import run_base
import tcp_run
from host_session import HostError, Session

# A host that was lost is tried again after so long, one that was refused later.
LOST_AGAIN_SECONDS = 3
REFUSED_AGAIN_SECONDS = 300
# A host that gives no sign of life for so long is given up here.
LOST_SECONDS = 18
# Its agent, which hears nothing, ends its workers after so long: before that, members
# that hear of each other again go on together.
PARTED_SECONDS = 60
# Where one worker has ended well, the others may be about to.
END_WELL_SECONDS = 5
# A worker has become a member so long before that is known here, at most.
UNSURE_SECONDS = 1.0
# How long a worker that is asked to leave may take.
LEAVE_SECONDS = 60
# So many workers of a host in a row that end before they take part are enough.
MOST_VAIN = 3
# As of choir_launch_config_t.elastic.
MOST_REPLACED = 100


class Place:
    """A host of the list. `session` is None while it has none."""

    def __init__(self, host, session=None):
        self.host = host
        self.session = session
        self.is_listed = True
        self.is_opening = False
        self.is_silent = False
        self.is_lost = (
            False  # it had workers, and what is left of them must end
        )
        self.again = 0.0  # not before this time
        self.left = 0  # of its slots, those of workers that left by themselves
        self.owed = 0  # workers to be replaced
        self.vain = 0
        self.replaced = 0
        self.leave_since = None


class Worker:
    def __init__(self, rank, place, is_newcomer):
        self.rank = rank
        self.place = place
        self.session = place.session
        self.is_newcomer = is_newcomer
        self.is_member = False
        self.is_asked = False  # to leave
        self.runs = True


def _list(words):
    words = [str(word) for word in words]
    if len(words) < 2:
        return "".join(words)
    return "%s and %s" % (", ".join(words[:-1]), words[-1])


def _ranks(ranks):
    return "rank%s %s" % ("s" if len(ranks) > 1 else "", _list(sorted(ranks)))


def _workers(count):
    return "%d worker%s" % (count, "" if count == 1 else "s")


def _go_on(count):
    return "%s go%s on" % (_workers(count), "es" if count == 1 else "")


class ElasticRun(tcp_run.TcpRun):
    agent_silence = PARTED_SECONDS

    def __init__(self, settings, watch, *arguments):
        """settings: ssh's; watch: the list of hosts that changes, or None."""
        super().__init__(*arguments)
        self.settings = settings
        self.host_watch = watch
        self.places = [Place(s.host, s) for s in self.sessions]
        self.workers = {
            rank: Worker(rank, place, False)
            for place in self.places
            for rank in place.host.ranks
        }
        self.judged = set()  # ranks whose end is known
        self.arrivals = []  # under the lock: (place, session or None, why)
        self.well_since = None  # when a worker ended well
        self.done = []  # those that did, while nobody knows whether all do
        self.unsure_since = None  # when one ended and no member was known
        self.few_since = None
        self.doubts = []  # (since when, how a host was lost, the signal)
        self.say = None

    # ---- The start ----

    def prepare(self, tell):
        self.say = tell
        if ipaddress.ip_address(self.result.meeting).is_loopback:
            self.result.meeting = self.own_address()
        super().prepare(tell)
        self.take_list(self.options.listed)
        if self.host_watch:
            self.host_watch.start()

    def own_address(self):
        """Of a run that begins on this host: where others could come to."""
        session = self.sessions[0]
        wanted = self.options.network_interfaces
        found = session.request("interfaces")["interfaces"]
        # Documentation's network: the way to hosts that are not near.
        far = session.request("sources", peers=["192.0.2.1"])["sources"]
        found = sorted(found, key=lambda i: i != far["192.0.2.1"])
        for entry in sorted(found, key=lambda i: ":" in i["address"]):
            address = ipaddress.ip_address(entry["address"])
            fits = not wanted or any(
                address in ipaddress.ip_network(word, strict=False)
                if "/" in word
                else word == entry["name"]
                for word in wanted
            )
            if fits and not (address.is_loopback or address.is_link_local):
                return entry["address"]
        return self.result.meeting

    def watch(self, session):
        super().watch(session)
        session.request("elastic")

    # ---- Workers ----

    def running(self):
        return [w for w in self.workers.values() if w.runs]

    def members(self):
        return [w for w in self.running() if w.is_member]

    def running_at(self, place):
        return [w for w in self.running() if w.place is place]

    def staying(self):
        return [w for w in self.running() if not w.is_asked]

    def who(self, worker):
        if worker.rank in self.verdict.pids:
            return self.verdict.who(worker.rank, ())
        return "rank %d (host %s)" % (worker.rank, worker.place.host.name)

    def start_newcomer(self, place):
        with self.lock:
            rank = self.started
            self.started += 1
            self.open_streams |= {(rank, stream) for stream in tcp_run.STREAMS}
        worker = Worker(rank, place, True)
        self.workers[rank] = worker
        place.host.ranks.append(rank)
        place.owed -= place.owed > 0
        known = any(w.is_member for w in self.running_at(place))
        givers = [] if known else [w.session for w in self.members()]
        threading.Thread(
            target=self.run_newcomer, args=(worker, givers), daemon=True
        ).start()
        self.say("rank %d is started on host %s" % (rank, place.host.name))

    def run_newcomer(self, worker, givers):
        """givers: sessions of hosts where the members are listed, for a host where
        they are not."""
        status = None
        environment = dict(
            self.exported,
            CHOIR_RANK=str(worker.rank),
            CHOIR_SIZE=str(worker.rank + 1),
            CHOIR_NEWCOMER="1",
        )
        try:
            text = ""
            for session in dict.fromkeys(givers):
                text = text or session.request("members", limit=5)["text"]
            status = worker.session.request(
                "rank",
                limit=None,
                rank=worker.rank,
                command=[self.program.path, *self.program.arguments],
                environment=environment,
                folder=os.getcwd(),
                members=text,
            )["status"]
        except HostError:
            pass  # judged as one that did not come
        with self.lock:
            self.over[worker.rank] = status
        self.events.put((None, {"event": "over"}))

    def judge(self, over, is_last=False):
        new = sorted(set(over) - self.judged)
        now = time.monotonic()
        if new and not self.members() and not is_last:
            # Agents may be about to tell of members.
            self.unsure_since = self.unsure_since or now
            if now - self.unsure_since < UNSURE_SECONDS:
                return
        for rank in new:
            self.judged.add(rank)
            worker = self.workers[rank]
            if worker.runs:
                worker.runs = False
                worker.place.host.ranks.remove(rank)
                self.note_end(worker, over[rank])

    def note_end(self, worker, status):
        place = worker.place
        if self.is_ending():
            super().judge({worker.rank: status})
        elif worker.is_asked:
            self.tell_left(worker)
        elif status == 0:
            place.left += 1
            self.well_since = time.monotonic()
            self.done.append(worker)
        elif status is None and worker.session.is_over:
            worker.runs = True  # its host's end comes
            place.host.ranks.append(worker.rank)
        elif worker.is_newcomer and not worker.is_member:
            place.vain += 1
            self.tell_end(worker, status, " before it took part")
        elif status and os.WIFSIGNALED(status) and self.members():
            place.replaced += 1
            place.owed += 1
            self.tell_end(worker, status)
        else:
            super().judge({worker.rank: status})

    def tell_left(self, worker):
        self.say(
            "%s has left; %s" % (self.who(worker), _go_on(len(self.staying())))
        )

    def tell_end(self, worker, status, when=""):
        if status is None:
            how = "could not be started"
        elif os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            how = "was killed by signal %d (%s)" % (
                number,
                signal.strsignal(number),
            )
        else:
            how = "ended with exit status %d" % os.waitstatus_to_exitcode(
                status
            )
        self.say(
            "%s %s%s; %s"
            % (self.who(worker), how, when, _go_on(len(self.staying())))
        )
        if worker.place.vain == MOST_VAIN:
            self.refuse(
                worker.place,
                "host %s: %d workers in a row have ended before they took part"
                % (worker.place.host.name, MOST_VAIN),
            )

    def outcome(self, over):
        self.judge(over, is_last=True)
        if not (self.well_since or self.verdict.failed):
            self.lose("no worker is left", 0)
        return int(bool(self.verdict.failed or self.verdict.lost))

    # ---- Hosts ----

    def note(self, session, event):
        if session not in self.sessions:
            return  # it was given up
        kind = event and event["event"]
        if event is None:
            self.lose_host(session, *session.how_it_ended())
        elif kind == "guard over":
            self.lose_host(
                session,
                "choirrun's guard there " + run_base.guard_end(event),
                0,
            )
        elif kind == "member":
            worker = self.workers[event["rank"]]
            worker.is_member = True
            worker.place.vain = 0
            if worker.is_newcomer:
                self.say("%s takes part" % self.who(worker))
        else:
            super().note(session, event)

    def check_hosts(self, tell):
        now = time.monotonic()
        for session in list(self.sessions):
            place = next(p for p in self.places if p.session is session)
            silence = now - session.heard
            was_silent = place.is_silent
            place.is_silent = silence >= run_base.SILENCE_SECONDS
            if self.is_ending():
                continue
            if silence >= LOST_SECONDS:
                self.lose_host(
                    session, "it gave no sign of life for %d s" % silence, 0
                )
            elif place.is_silent != was_silent:
                tell(
                    "host %s %s"
                    % (
                        session.name,
                        "gives no sign of life" if place.is_silent
                        else "is back",
                    )
                )  # fmt: skip

    def give_up(self, place):
        """Ends the connection; an agent without workers ends with it."""
        session, place.session = place.session, None
        self.sessions.remove(session)
        threading.Thread(target=session.close, daemon=True).start()

    def lose_host(self, session, why, number):
        place = next(p for p in self.places if p.session is session)
        lost = self.running_at(place)
        name = "host %s%s was lost: %s" % (
            session.name,
            " (%s)" % _ranks(place.host.ranks) if lost else "",
            why,
        )
        self.give_up(place)
        place.is_lost, place.is_silent = True, False
        place.again = time.monotonic() + LOST_AGAIN_SECONDS
        place.owed += len(lost)
        place.host.ranks.clear()
        for worker in lost:
            worker.runs = False
            with self.lock:
                self.judged.add(worker.rank)
                self.open_streams -= {
                    (worker.rank, stream) for stream in tcp_run.STREAMS
                }
        if self.is_ending():
            return
        # One that has ended already counts for nothing.
        if lost and not self.members() and not self.well_since:
            self.doubts.append((None, name, number))
            return
        self.say("%s; %s" % (name, _go_on(len(self.staying()))))

    def settle_doubts(self, now):
        """Where a host was lost, and no member was known, agents may have been about
        to tell of some."""
        doubts, self.doubts = self.doubts, []
        for since, name, number in doubts:
            since = since or now
            if self.members() or self.well_since:
                self.say("%s; %s" % (name, _go_on(len(self.staying()))))
            elif now - since < UNSURE_SECONDS:
                self.doubts.append((since, name, number))
            else:
                self.lose(name, number)
                self.verdict.failed = True

    def open_host(self, place):
        place.is_opening = True
        self.settings.add(place.host)
        live = list(self.sessions)
        threading.Thread(
            target=self.look_at_host, args=(place, live), daemon=True
        ).start()

    def look_at_host(self, place, live):
        session, why = None, ""
        try:
            if ipaddress.ip_address(self.result.meeting).is_loopback:
                raise HostError(
                    "%s: the workers of this run have no address in a network "
                    "that it could come to" % place.host.name
                )
            session = preflight.open_late(
                place.host,
                live,
                self.settings,
                self.options,
                self.program,
                dict(self.exported),
            )
            self.watch(session)
        except preflight.Problems as problems:
            why = "; ".join(problems.sentences)
        except HostError as error:
            why = str(error)
        with self.lock:
            self.arrivals.append((place, session if not why else None, why))
        if (why or self.is_over) and session:
            session.close()

    def take_arrivals(self, now):
        with self.lock:
            arrivals, self.arrivals = self.arrivals, []
        for place, session, why in arrivals:
            place.is_opening = False
            if why and place.is_lost:
                place.again = now + LOST_AGAIN_SECONDS
            elif why:
                self.refuse(place, why)
            elif session.is_over:
                place.again = now + LOST_AGAIN_SECONDS
            else:
                place.session = session
                self.sessions.append(session)
                self.say(
                    "host %s %s"
                    % (
                        session.name,
                        "is back" if place.is_lost
                        else "is taken in: " + session.info["system"],
                    )
                )  # fmt: skip
                place.is_lost = False

    def refuse(self, place, why):
        place.again = time.monotonic() + REFUSED_AGAIN_SECONDS
        place.vain = 0
        self.say(
            "%s; nothing is started there until its entry changes, or for %d "
            "minutes" % (why, REFUSED_AGAIN_SECONDS / 60)
        )

    # ---- The list ----

    def take_list(self, listed):
        news = {host.name: host for host in listed}
        for place in self.places:
            host = news.pop(place.host.name, None)
            if host is None:
                place.is_listed = False
                continue
            is_same = (host.user, host.slots) == (
                place.host.user,
                place.host.slots,
            )
            if not (is_same and place.is_listed):
                place.left = 0
                place.again = 0
            place.host.user, place.host.slots = host.user, host.slots
            place.is_listed = True
        self.places += [Place(host) for host in news.values()]
        self.hosts += news.values()

    def check_list(self):
        found = self.host_watch.poll() if self.host_watch else None
        if isinstance(found, str):
            self.say(found + "; the hosts stay as they are")
        elif found is not None:
            self.take_list(found)

    def drop_hosts(self, now):
        """Those that are not listed any more."""
        for place in list(self.places):
            there = self.running_at(place)
            if place.leave_since and there:
                if now - place.leave_since > LEAVE_SECONDS:
                    place.session.end_run(self.name)
            elif place.leave_since or not place.is_listed:
                if there:
                    self.ask_to_leave(place, there, now)
                elif not place.is_opening:
                    self.drop_host(place)

    def ask_to_leave(self, place, there, now):
        place.leave_since = now
        for worker in there:
            worker.is_asked = True
        self.say(
            "host %s is not listed any more; %s %s asked to leave"
            % (
                place.host.name,
                _ranks(place.host.ranks),
                "is" if len(there) == 1 else "are",
            )
        )
        place.session.signal_run(signal.SIGTERM)

    def drop_host(self, place):
        """One that nobody is left on. It may be listed again meanwhile."""
        place.leave_since = None
        if place.session:
            self.give_up(place)
        if not place.is_listed:
            self.places.remove(place)

    # ---- What there is to do ----

    def check(self, now, tell):
        super().check(now, tell)
        if self.status is None and not self.is_ending():
            self.check_list()
            self.take_arrivals(now)
            self.settle_doubts(now)
            self.drop_hosts(now)
            if not self.is_quiet(now):
                for worker in self.done:
                    self.tell_left(worker)
                self.done = []
                self.end_latecomers()
            self.fill(now)
            self.check_count(now)

    def is_quiet(self, now):
        """The run may be about to end."""
        return self.well_since and now - self.well_since < END_WELL_SECONDS

    def fill(self, now):
        """Starts workers on free slots, first where one is to be replaced."""
        if not self.members() or self.is_quiet(now):
            return
        room = self.options.max_np - len(self.staying())
        for place in sorted(self.places, key=lambda p: not p.owed):
            if not place.is_listed or place.leave_since or now < place.again:
                continue
            free = min(self.free_slots(place, room), room)
            room -= free
            if place.session:
                for _ in range(free):
                    self.start_newcomer(place)
            elif (free or place.is_lost) and not place.is_opening:
                self.open_host(place)

    def free_slots(self, place, room):
        """Those of workers that left only while fewer than --min-np are there."""
        if place.replaced >= MOST_REPLACED:
            return 0
        free = place.host.slots - len(place.host.ranks) - place.left
        free = max(free, 0)
        lacking = self.options.min_np - (self.options.max_np - room) - free
        again = max(min(place.left, lacking), 0)
        place.left -= again
        return free + again

    def check_count(self, now):
        count = len(self.staying())
        if count >= self.options.min_np or self.is_quiet(now):
            self.few_since = None
            return
        self.few_since = self.few_since or now
        limit = self.options.elastic_timeout
        if now - self.few_since >= limit:
            self.lose(
                "%s, fewer than --min-np %d, for %g s"
                % (_workers(count), self.options.min_np, limit),
                0,
            )
            self.verdict.failed = True

    def end_latecomers(self):
        """The others have ended well, and nobody takes these in any more."""
        late = [w for w in self.running() if w.is_newcomer and not w.is_member]
        if self.well_since and late and late == self.running():
            for worker in late:
                worker.is_asked = True
            for session in self.sessions:
                session.end_run(self.name)

    def finish(self):
        if self.verdict.failed or self.ended_by:
            self.end_what_is_lost()
        super().finish()

    def end_what_is_lost(self):
        """On hosts whose connection broke workers may still run."""

        def end(place):
            session = Session(place.host, self.settings, 3)
            try:
                session.watch(self.name, 1, self.events)
                session.request("elastic", limit=5)
            finally:
                session.close()

        preflight.all_at_once(end, [p for p in self.places if p.is_lost])
