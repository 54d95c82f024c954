# SPDX-License-Identifier: Apache-2.0
"""Workers that die, stop or are interrupted: everybody ends, a sentence tells
who and where, nothing is left."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time

from tests.examples import harness

WORKER = r"rank %d \(host \S+, pid %d\)"


class FaultsTest(harness.ProgramTest):
    def begin(self, *arguments, until="Starting Epoch 1:\n", **options):
        """A run without end that is in its second epoch."""
        harness.small_data(self.data)
        process = self.start(
            "--epochs", 1000000, "--data", self.data, *arguments, **options
        )
        line = process.stdout.readline()
        while line != until:
            self.assertTrue(line, "it ended by itself")
            line = process.stdout.readline()
        return process

    def worker(self, count, rank, **options):
        workers = self.workers(**options)
        self.assertEqual(sorted(workers), list(range(count)))
        return workers[rank]

    def expect_end(self, process, status, *sentences):
        start = time.monotonic()
        got, _, err = self.finish(process)
        self.assertEqual(got, status, err)
        for sentence in sentences:
            self.assertRegex(err, sentence)
        self.assert_nothing_left()
        return time.monotonic() - start, err

    def test_a_run_that_diverges(self):
        file = self.path("net.safetensors")
        harness.small_data(self.data)
        run = ("--data", self.data, "--save", file, "--save-every", 1)
        run += ("--global-batch", 96)
        self.train(*run, "--epochs", 1)
        with open(file, "rb") as saved:
            before = saved.read()
        for flags in (
            ("--workers", 1, "--resume", file),
            ("--workers", 3, "--resume", file, "--precision", "bf16"),
            ("--workers", 2, "--graph=false", "--dist-option", "sparseTopK"),
        ):
            status, _, err = self.run_program(
                *run, "--epochs", 9, "--lr", 1e6, *flags
            )
            self.assertEqual((status, err.count("\n")), (1, 1), err)
            self.assertRegex(
                err,
                r"^mnist_dist: training step \d+: the loss is (nan|infinite), and "
                r"nothing was updated; values were first not finite in "
                r"(what op \w+ made in layer \w+|parameter \w+\.\w+)\n$",
            )
            with open(file, "rb") as saved:
                self.assertEqual(saved.read(), before)

    def test_killed_worker(self):
        for count, victim in ((2, 0), (2, 1), (4, 2)):
            with self.subTest(count=count, victim=victim):
                process = self.begin("--workers", count)
                pid = self.worker(count, victim)
                os.kill(pid, signal.SIGKILL)
                _, err = self.expect_end(
                    process,
                    128 + signal.SIGKILL,
                    WORKER % (victim, pid)
                    + r" was killed by signal 9 \(Killed\) in epoch \d+ step "
                    r"\d+; ",
                    "; all workers were ended\n$",
                )
                self.assertEqual(err.count("\n"), 1, err)

    def test_crashed_worker(self):
        process = self.begin()
        pid = self.worker(2, 1)
        os.kill(pid, signal.SIGSEGV)
        # A sanitizer's own handler makes it an exit status.
        status = 1 if harness.is_sanitized() else 128 + signal.SIGSEGV
        self.expect_end(process, status, WORKER % (1, pid))

    def test_stopped_worker(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                process = self.begin("--deadline", 3)
                pid = self.worker(2, victim)
                os.kill(pid, signal.SIGSTOP)
                self.expect_end(
                    process,
                    1,
                    WORKER % (victim, pid) + " was stopped by a signal",
                    r"waiting for it in \w+ '[^']+' \(operation \d+\)",
                )

    def test_killed_launcher(self):
        process = self.begin("--workers", 3)
        process.kill()
        process.communicate()
        self.assert_nothing_left()

    def test_interrupt(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                process = self.begin("--workers", 3)
                # As a terminal does: the launcher and all workers get it.
                os.killpg(process.pid, number)
                _, err = self.expect_end(
                    process,
                    128 + number,
                    r"^mnist_dist: interrupted by signal %d \(.+\); all "
                    r"workers were ended\n$" % number,
                )

    def test_interrupt_while_joining(self):
        harness.small_data(self.data)
        process = self.start(
            "--epochs", 1000000, "--workers", 4, "--data", self.data
        )
        time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        self.finish(process)
        self.assert_nothing_left()

    def test_interrupt_of_one_process(self):
        file = self.path("net")
        process = self.begin("--save", file, "--save-every", 1, program="mnist")
        process.send_signal(signal.SIGINT)
        self.expect_end(
            process, 130, r"^mnist: interrupted by signal 2 \(Interrupt\)\n$"
        )
        self.assertTrue(os.path.exists(file))

    def test_killed_while_saving(self):
        try:
            os.close(os.open(self.folder, os.O_TMPFILE | os.O_WRONLY))
        except OSError:
            self.skipTest("this file system has no files without a name")
        harness.small_data(self.data, training=64, evaluation=16)
        # The kernel kills it when the file becomes too large.
        most = 100000
        process = self.start(
            "--epochs", 1, "--batch-size", 32, "--data", self.data,
            "--save", self.path("net"), program="mnist",
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_FSIZE, (most, most)
            ),
        )  # fmt: skip
        got, _, err = self.finish(process)
        self.assertEqual((got, err), (-signal.SIGXFSZ, ""))
        self.assert_nothing_left()
        self.assertEqual(os.listdir(self.folder).count("net"), 0)

    def test_killed_rank_under_mpiexec(self):
        for comm in ("shm", "mpi"):
            with self.subTest(comm=comm):
                process = self.begin("--comm", comm, under=self.mpiexec(2))
                pid = self.worker(2, 1)
                survivor = self.worker(2, 0)
                os.kill(pid, signal.SIGKILL)
                got, _, err = self.finish(process)
                self.assertNotEqual(got, 0)
                # Who lived says what it waited for, unless what it waited for
                # told it first that the other one is gone.
                self.assertRegex(err, WORKER % (0, survivor))
                self.assertRegex(err, WORKER % (1, pid) + "|PID %d" % pid)
                self.assert_nothing_left()

    def test_terminated_rank_under_mpiexec(self):
        self.environment["CHOIR_HOST"] = "elsewhere"
        process = self.begin("--comm", "mpi", under=self.mpiexec(2))
        pids = self.workers()
        os.kill(pids[1], signal.SIGTERM)
        got, _, err = self.finish(process)
        self.assertEqual(got, 128 + signal.SIGTERM, err)
        # Each says who sent the signal: this test, or mpiexec. Open MPI 5 shows
        # nothing of what ranks say that it ends.
        senders = [(1, os.getpid()), (0, process.pid)]
        for rank, sender in senders[: 1 if shutil.which("prterun") else 2]:
            self.assertRegex(
                err,
                r"rank %d \(host elsewhere, pid %d\) was ended by signal 15 "
                r"\(Terminated\) from \S+ \(pid %d\)"
                % (rank, pids[rank], sender),
            )
        self.assert_nothing_left()

    def test_terminated_rank_in_a_pid_namespace_of_its_own(self):
        apart = ("unshare", "--pid", "--fork")
        if subprocess.run([*apart, "true"], check=False).returncode:
            self.skipTest("unshare --pid is not allowed here")
        process = self.begin("--comm", "mpi", under=(*self.mpiexec(1), *apart))
        os.kill(self.worker(1, 0), signal.SIGTERM)
        _, _, err = self.finish(process)
        # The number of its sender is none in there, and is not told.
        self.assertRegex(
            err,
            WORKER % (0, 1) + r" was ended by signal 15 \(Terminated\)( in|\n)",
        )
        self.assert_nothing_left()

    def test_stopped_rank_while_mpi_starts(self):
        harness.small_data(self.data)
        process = self.start_command(
            *[*self.mpiexec(2), "sh", "-c"],
            "[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -STOP $$; exec %s "
            "--deadline 2 --data %s"
            % (os.path.join(harness.ROOT, "examples/mnist_dist"), self.data),
        )
        got, _, err = self.finish(process)
        self.assertEqual(got, 1)
        self.assertRegex(
            err,
            "mnist_dist: comm mpi: MPI_Init did not return within 2.0 s: .+; "
            r"rank 1 \(pid \d+\) is stopped\n",
        )
        self.assert_nothing_left()

    def test_interrupt_of_mpiexec(self):
        process = self.begin(under=self.mpiexec(2))
        os.killpg(process.pid, signal.SIGINT)
        got, _, _ = self.finish(process)
        # Open MPI's own status; --launcher mpi gives 130.
        self.assertEqual(got, 1)
        self.assert_nothing_left()

    def begin_mpi(self, *arguments):
        """Under --launcher mpi: the process, and the folders of Open MPI."""
        # Those that the launcher makes are what is looked at.
        self.environment.pop("OMPI_MCA_btl_vader_backing_directory", None)
        process = self.begin("--launcher", "mpi", *arguments)
        with open("/proc/%d/environ" % self.worker(2, 0)) as file:
            words = dict(w.split("=", 1) for w in file.read().split("\0") if w)
        folders = [
            words["OMPI_MCA_orte_tmpdir_base"],
            words["OMPI_MCA_btl_vader_backing_directory"],
        ]
        for folder in folders:
            self.assertTrue(os.listdir(folder), folder)
        return process, folders

    def mpiexec_of(self, process):
        """The process that --launcher mpi started."""
        for pid in self.processes():
            with open("/proc/%d/cmdline" % pid) as file:
                program = file.read().split("\0")[0]
            # Open MPI 5's becomes another program.
            if os.path.basename(program) in ("mpiexec", "prterun"):
                return pid
        self.fail("no mpiexec")

    def test_launcher_mpi(self):
        for who, number, status, sentence in (
            ("rank", signal.SIGKILL, 137, r"rank 1\b"),
            ("rank", signal.SIGTERM, 143, r"rank 1\b"),
            ("mpiexec", signal.SIGKILL, 137, "mpiexec .* was killed by "
             r"signal 9 \(Killed\); all ranks were ended\n$"),
            ("launcher", signal.SIGKILL, -9, "^"),
            ("launcher", signal.SIGTERM, 143, r"interrupted by signal 15 "
             r"\(Terminated\); all ranks were ended\n$"),
            ("launcher", signal.SIGINT, 130, r"interrupted by signal 2"),
            ("group", signal.SIGINT, 130, r"interrupted by signal 2"),
        ):  # fmt: skip
            with self.subTest(who=who, number=number):
                process, folders = self.begin_mpi()
                rank = self.worker(2, 1)
                if who == "rank":
                    os.kill(rank, number)
                elif who == "mpiexec":
                    os.kill(self.mpiexec_of(process), number)
                elif who == "launcher":
                    process.send_signal(number)
                else:
                    os.killpg(process.pid, number)
                self.expect_end(process, status, sentence)
                for folder in folders:
                    self.assertFalse(os.path.exists(folder), folder)

    def test_mpiexec_that_hangs(self):
        # What Open MPI 4.1 does once in fifty times when a rank dies in MPI_Init:
        # it has reaped that rank, and stops before the next.
        script = self.path("mpiexec")
        with open(script, "w") as file:
            file.write(
                "#!/bin/bash\n"
                "OMPI_COMM_WORLD_RANK=1 bash -c 'sleep 1; kill -9 $$' &\n"
                "wait $!\n"
                "echo rank 1 died\n"
                "exec %s -c 'import os, time\n"
                'os.environ["OMPI_COMM_WORLD_RANK"] = "0"\n'
                'os.posix_spawn("/bin/sh", ["sh", "-c", '
                '"sleep 1; exit 3"], os.environ)\n'
                "time.sleep(1000)'\n" % sys.executable
            )
        os.chmod(script, 0o755)
        self.environment["PATH"] = self.folder + ":" + os.environ["PATH"]
        process = self.start("--launcher", "mpi")
        got, out, err = self.finish(process)
        self.assertEqual((got, out), (1, "rank 1 died\n"), err)
        self.assertRegex(
            err,
            r"mnist_dist: mpiexec \(host \S+, pid \d+\) hung after the end of "
            r"rank 1 \(pid \d+\) and was killed; all ranks were ended\n$",
        )
        os.remove(script)
        self.assert_nothing_left()

    def test_no_mpiexec(self):
        self.environment["PATH"] = self.folder
        got, _, err = self.finish(self.start("--launcher", "mpi"))
        self.assertEqual(got, 1)
        self.assertRegex(err, "^mnist_dist: launch: there is no mpiexec; .+\n$")
        self.assert_nothing_left()


if __name__ == "__main__":
    harness.main()
