# SPDX-License-Identifier: Apache-2.0
"""Wrong use: one sentence that names the thing, and an exit status."""

import gzip
import json
import os
import struct

from tests.examples import harness

USAGE = 2
FAILURE = 1


class MistakesTest(harness.ProgramTest):
    def expect(self, status, sentence, *arguments, **options):
        got, out, err = self.run_program(*arguments, **options)
        program = options.get("program", "mnist_dist")
        with self.subTest(arguments=arguments, said=err):
            self.assertEqual((got, out), (status, ""))
            self.assertRegex(err, r"^%s: %s\n$" % (program, sentence))
            self.assertEqual(err.count("\n"), 1)
            self.assert_nothing_left()

    def test_flags(self):
        for arguments, sentence in (
            (["--epoch", "3"], "unknown flag '--epoch'; --help lists.*"),
            (["fast"], "unknown argument 'fast'; --help lists.*"),
            (["--epochs"], "--epochs needs a value.*"),
            (["--save="], "--save= needs a value.*"),
            (["--epochs", "many"], "flags: epochs is 'many'; needs a whole.*"),
            (["--epochs", "0"], "flags: epochs is '0'; needs .* from 1.*"),
            (["--workers", "0"], "flags: workers is '0'; needs .* 1 to 1024.*"),
            (["--workers", "-1"], "flags: workers is '-1'; needs .*"),
            (["--workers=2x"], "flags: workers is '2x'; needs .*"),
            (["--batch-size", "0"], "flags: batch_size is '0'; needs .*"),
            (["--lr", "-0.1"], "flags: lr is '-0.1'; needs .*"),
            (["--lr", "nan"], "flags: lr is 'nan'; needs .*"),
            (["--seed", "-1"], "flags: seed is '-1'; needs .*"),
            (["--deadline", "0"], "flags: deadline is '0'; needs .*"),
            (["--silence", "-1"], "flags: silence is '-1'; needs .*"),
            (["--launcher", "ssh"], ".*launcher is 'ssh'; .* spawn, mpi.*"),
            (
                ["--comm", "ucx"],
                ".*comm is 'ucx'; needs one of auto, shm, tcp, mpi.*",
            ),
            (["--dist-option", "fp8"], '.*dist_option is "fp8"; .*fp32.*'),
            (["--save-every", "2"], "--save-every .* give --save FILE too"),
            (["--comm", "mpi"], "--comm mpi needs --launcher mpi.*"),
            (
                ["--balance", "--shares", "96,32"],
                "--balance measures what --shares says; give one of them",
            ),
        ):
            self.expect(USAGE, sentence, *arguments)
        self.expect(
            USAGE, "unknown flag '--workers'.*", "--workers", 2, program="mnist"
        )

    # A worker would first have missed the data.
    def test_settings_of_a_strategy(self):
        nowhere = self.path("nowhere")
        for arguments, sentence in (
            (
                ["--spars", "0.5"],
                "fp32: spars is 0.5; only these have such a setting: "
                "sparseTopK, sparseThreshold, dgc, sparseLocal",
            ),
            (
                ["--dist-option", "sparseTopK", "--dist-settings", "spars=2"],
                "sparseTopK: spars is '2'; needs a number from 1e-09 to 1 .*",
            ),
            (
                ["--dist-option", "sparseTopK", "--spars", "2"],
                "sparseTopK: spars is 2; needs a number from 1e-09 to 1 .*",
            ),
            (
                [
                    "--dist-option", "localSGD",
                    "--dist-settings", "period=8,delay=16",
                ],
                "localSGD: delay is 16 steps and period 8; a round must end "
                "before the next one begins",
            ),
            (
                ["--dist-option", "localSGD", "--dist-settings", "perod=8"],
                "localSGD: no field is called 'perod'; known are period,.*",
            ),
            (
                ["--dist-option", "localSGD", "--dist-settings", "period"],
                "localSGD: 'period' in a list of settings; name=value is.*",
            ),
            (
                ["--plan", "--dist-settings", "ranks=2"],
                "auto: ranks is 2 and bandwidth is 0; a link that is given .*",
            ),
        ):  # fmt: skip
            self.expect(USAGE, sentence, "--data", nowhere, *arguments)

    def test_workers_under_mpiexec(self):
        for flag in (("--workers", 2), ("--launcher", "mpi")):
            status, out, err = self.run_program(*flag, under=self.mpiexec(1))
            self.assertEqual((status, out), (USAGE, ""))
            self.assertRegex(
                err, "mnist_dist: --workers and --launcher are not for a"
            )
            self.assert_nothing_left()

    def test_things_that_are_not_there(self):
        nowhere = self.path("nowhere")
        for arguments, sentence in (
            (["--data", nowhere], ".*cannot open folder '%s'.*" % nowhere),
            (["--resume", nowhere], ".*cannot open '%s'.*" % nowhere),
            (["--save", nowhere + "/net"], ".*folder of %s/net.*" % nowhere),
            (["--log-json", nowhere + "/log"], ".*write to %s/log.*" % nowhere),
            (["--device", "gpu"], ".*no device is called 'gpu'.*known are.*"),
        ):
            if "--data" not in arguments:
                arguments += ["--data", harness.REAL_DATA]
            self.expect(FAILURE, sentence, *arguments)
            self.expect(FAILURE, sentence, *arguments, program="mnist")

    def test_log_on_a_full_disk(self):
        harness.small_data(self.data)
        for program, who in (("mnist", "mnist: "), ("mnist_dist", "rank 0 ")):
            status, _, err = self.run_program(
                *["--log-json", "/dev/full", "--data", self.data],
                *["--epochs", 1000000],
                program=program,
            )
            self.assertEqual(status, FAILURE)
            self.assertIn(who, err)
            self.assertIn(
                "log-json: cannot write to /dev/full: No space left", err
            )
            self.assert_nothing_left()

    def break_file(self, name, change):
        harness.small_data(self.data)
        path = os.path.join(self.data, name)
        with open(path, "rb") as file:
            data = file.read()
        harness.write_idx(path, change(data))

    def test_data_files(self):
        images = "train-images-idx3-ubyte"
        labels = "train-labels-idx1-ubyte"

        def count(number):
            return lambda d: d[:4] + struct.pack(">i", number) + d[8:]

        for name, change, sentence in (
            (images, lambda d: d[:-1], "%s.*"),
            (images, lambda d: d + b"x", "%s.*"),
            (images, lambda d: b"", "%s.*"),
            (images, lambda d: b"\0\0\x08\x01" + d[4:], "%s.*"),
            (images, lambda d: b"PK" + d[2:], "%s.*begins with bytes 50 4b.*"),
            (images, count(641), "%s.*"),
            (labels, lambda d: count(639)(d)[:-1], ".*639.*"),
            (labels, lambda d: d[:8] + b"\x0a" + d[9:], "%s.*label.*10.*"),
        ):
            self.break_file(name, change)
            where = sentence % (".*" + name) if "%s" in sentence else sentence
            self.expect(FAILURE, where, "--data", self.data)
        os.remove(os.path.join(self.data, labels))
        self.expect(FAILURE, ".*%s.*" % labels, "--data", self.data)

    def test_truncated_gzip(self):
        harness.small_data(self.data)
        path = os.path.join(self.data, "t10k-labels-idx1-ubyte")
        with open(path, "rb") as file:
            packed = gzip.compress(file.read())
        os.remove(path)
        harness.write_idx(path + ".gz", packed[:-9])
        self.expect(FAILURE, ".*t10k-labels.*", "--data", self.data)

    def test_batch_larger_than_the_partition(self):
        harness.small_data(self.data)
        self.expect(
            FAILURE,
            ".*batch of 321 samples for each of 2 workers is larger than the "
            "partition: 640 samples make 320 for a worker",
            "--data", self.data, "--batch-size", 321,
        )  # fmt: skip

    def test_shares(self):
        harness.small_data(self.data)
        for shares, sentence in (
            (
                "128",
                ".*shares are '128'; 2 ranks need 2 whole numbers from 0.*",
            ),
            ("96,48", ".*share of rank 1 is 48; the global batch of 128 .*"),
            ("96,16", ".*are 112 samples together; the global batch is 128"),
            ("100,28", ".*rank 0 is 100; .* a multiple of the micro-shard, 16"),
        ):
            self.expect(
                FAILURE, sentence, "--data", self.data, "--shares", shares
            )

    def test_shares_that_differ(self):
        harness.small_data(self.data)
        program = os.path.join(harness.ROOT, "examples/mnist_dist")
        # Not by mpiexec's ':', which ends with a segmentation fault in Debian
        # 13's Open MPI.
        script = (
            "case $OMPI_COMM_WORLD_RANK in 0) shares=96,32 ;; *) "
            'shares=64,64 ;; esac; exec "$@" --shares $shares'
        )
        status, out, err = self.finish(
            self.start_command(
                *self.mpiexec(2), "sh", "-c", script, "sh",
                program, "--data", self.data,
            )
        )  # fmt: skip
        self.assertNotEqual(status, 0)
        self.assertIn(
            "shares: rank 0 has '96,32', rank 1 has '64,64'; all ranks need "
            "the same", err,
        )  # fmt: skip
        self.assertEqual(out, "")
        self.assert_nothing_left()

    def test_checkpoints(self):
        file = self.path("net.safetensors")
        self.train("--epochs", 1, "--save", file)
        resume = ("--data", self.data, "--resume", file)
        for arguments, sentence in (
            (["--seed", 1], ".*saved with seed 0, this run has 1; .*"),
            (["--batch-size", 32], ".*saved with global batch 128, .* 64; .*"),
            (["--limit", 320], ".*training samples 640, this run has 320; .*"),
            (["--epochs", 1], ".*has all of its 1 epochs .*more are needed.*"),
        ):
            self.expect(FAILURE, sentence, *resume, *arguments)
        with open(file, "rb") as saved:
            data = saved.read()
        for name, damaged in (
            ("truncated", data[:-1]),
            ("changed", data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]),
            ("no checkpoint", b"hello"),
        ):
            with self.subTest(name):
                harness.write_idx(file, damaged)
                self.expect(FAILURE, ".*%s.*" % file, *resume)

    def test_checkpoint_of_other_workers(self):
        file = self.path("net.safetensors")
        run = ("--epochs", 1, "--workers", 3, "--batch-size", 32)
        self.train(*run, "--save", file, "--dist-option", "sparseTopK")
        resume = ("--data", self.data, "--resume", file, "--epochs", 2)
        top_k = ("--dist-option", "sparseTopK")
        two = ("--workers", 2, "--batch-size", 48)
        own_states = (
            ".*saved for each of 3 workers and this run has %d; it needs as many "
            "as it was saved with.*"
        )
        self.expect(FAILURE, own_states % 2, *resume, *two, *top_k)
        self.expect(
            FAILURE, own_states % 1, *resume, *top_k,
            "--workers", 1, "--batch-size", 96,
        )  # fmt: skip
        other = (
            ".*saved with dist option sparseTopK, this run has %s; both must "
            "be the same.*"
        )
        self.expect(FAILURE, other % "fp32", *resume, *two)
        self.expect(
            FAILURE, other % "fp32", *resume, "--batch-size", 96,
            program="mnist",
        )  # fmt: skip
        self.expect(
            FAILURE, other % "dgc", *resume, *two, "--dist-option", "dgc"
        )
        # One that has the same on all workers does for any number of them.
        self.train(*run, "--save", file)
        self.train(*resume[2:], *two)
        self.train(*resume[2:], "--batch-size", 96, program="mnist")

    def test_checkpoint_of_another_model(self):
        file = self.path("net.safetensors")
        self.train("--epochs", 1, "--save", file)
        with open(file, "rb") as saved:
            data = saved.read()
        # As another program would write it: without Choir's sum.
        bytes_of_header = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + bytes_of_header])
        metadata = header["__metadata__"]
        for key in [key for key in metadata if key.startswith("choir.")]:
            del metadata[key]
        header["conv9.W"] = header.pop("conv1.W")
        text = json.dumps(header).encode()
        harness.write_idx(
            file,
            struct.pack("<Q", len(text)) + text + data[8 + bytes_of_header :],
        )
        self.expect(
            FAILURE, ".*conv1.W.*", "--data", self.data, "--resume", file,
            "--epochs", 2,
        )  # fmt: skip


if __name__ == "__main__":
    harness.main()
