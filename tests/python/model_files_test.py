# SPDX-License-Identifier: Apache-2.0
"""choir.model: states and checkpoints in files."""

import errno
import io
import json
import os
import unittest
import zipfile
from unittest import mock

import numpy as np

from choir import StateError, data, opt, tensor
from small_models import Base, Plain, made, path, samples


class Files(Base):
    def test_states_go_round(self):
        x, y = samples()
        a, b = made(), made(seed=8)
        for _ in range(3):
            a(x, y)
        aux = {
            "epoch": tensor.ones((2,)) * 7.0,
            "n": tensor.ones((1,)).as_type(tensor.int32),
        }
        file = path("states.zip")
        a.save_states(file, aux)
        self.assertNotEqual(a.digest(), b.digest())
        got = b.load_states(file)
        self.same(a, b)
        self.assertEqual(set(got), {"epoch", "n"})
        np.testing.assert_array_equal(got["epoch"].numpy(), [7, 7])
        self.assertEqual(got["n"].dtype, tensor.int32)
        a.eval()
        b.eval()
        np.testing.assert_array_equal(a(x).numpy(), b(x).numpy())

    def test_the_file_is_as_documented(self):
        m = made()
        file = path("format.zip")
        m.save_states(file, {"a": tensor.ones((1,))})
        with zipfile.ZipFile(file) as archive:
            self.assertEqual(
                sorted(n.lstrip("/") for n in archive.namelist()),
                ["states_attr.json", "tensor_dict.npz"],
            )
            names = {n.lstrip("/"): n for n in archive.namelist()}
            attributes = json.loads(archive.read(names["states_attr.json"]))
            arrays = np.load(io.BytesIO(archive.read(names["tensor_dict.npz"])))
        self.assertEqual(set(arrays.files), set(m.get_states()) | {"a"})
        self.assertEqual(
            attributes["l1.W"],
            {"state_type": 0, "shape": [5, 8], "dtype": tensor.float32},
        )
        self.assertEqual(attributes["a"]["state_type"], 1)
        np.testing.assert_array_equal(arrays["l1.W"], m.l1.W.numpy())

    def by_hand(self, name, arrays, attributes, member="/tensor_dict.npz"):
        """A file as SINGA writes it."""
        file = path(name)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(member, buffer.getvalue())
            archive.writestr("/states_attr.json", json.dumps(attributes))
        return file

    def test_singas_files_load(self):
        rng = np.random.default_rng(0)
        arrays = {
            "l.W": rng.normal(size=(5, 2)).astype(np.float32),
            "l.b": rng.normal(size=2).astype(np.float32),
            "epoch": np.array([4], np.int32),
        }
        attributes = {
            name: {
                "state_type": int(name == "epoch"),
                "shape": list(value.shape),
                "dtype": 0,
            }
            for name, value in arrays.items()
        }
        m = made(Plain)
        aux = m.load_states(self.by_hand("singa.zip", arrays, attributes))
        np.testing.assert_array_equal(m.l.W.numpy(), arrays["l.W"])
        np.testing.assert_array_equal(m.l.b.numpy(), arrays["l.b"])
        np.testing.assert_array_equal(aux["epoch"].numpy(), [4])

    def test_wrong_files_change_nothing(self):
        m = made(Plain)
        before = m.digest()
        whole = {"state_type": 0, "shape": [2], "dtype": 0}
        ones = np.ones(2, np.float32)
        with self.assertRaises(FileNotFoundError):
            m.load_states(path("missing.zip"))
        with open(path("text.zip"), "w", encoding="utf-8") as file:
            file.write("hello")
        with self.assertRaisesRegex(ValueError, "not a zip"):
            m.load_states(path("text.zip"))
        with self.assertRaisesRegex(ValueError, "lacks 'tensor_dict.npz'"):
            m.load_states(
                self.by_hand("lacks.zip", {"l.b": ones}, {}, "/other")
            )
        file = self.by_hand(
            "shape.zip",
            {"l.b": ones, "l.W": np.ones((2, 2), np.float32)},
            {"l.b": whole, "l.W": whole},
        )
        with self.assertRaisesRegex(
            ValueError, r"state l.W has shape \(5, 2\)"
        ):
            m.load_states(file)
        file = self.by_hand("name.zip", {"l.c": ones}, {"l.c": whole})
        with self.assertRaisesRegex(KeyError, "no state is called 'l.c'"):
            m.load_states(file)
        file = self.by_hand("attribute.zip", {"l.b": ones}, {})
        with self.assertRaisesRegex(ValueError, "l.b"):
            m.load_states(file)
        self.assertEqual(m.digest(), before)

    def test_states_are_on_the_disk_before_their_name_is(self):
        m = made(Plain)
        file, done = path("whole.zip"), []
        fsync, link = os.fsync, os.link

        def synced(descriptor):
            name = os.readlink(f"/proc/self/fd/{descriptor}")
            done.append(("fsync", os.path.isdir(name), os.path.exists(file)))
            fsync(descriptor)

        def linked(partial, name):
            done.append(("link", os.path.getsize(partial) > 0))
            link(partial, name)

        with mock.patch("os.fsync", synced), mock.patch("os.link", linked):
            m.save_states(file)
        self.assertEqual(
            done,
            [("fsync", False, False), ("link", True), ("fsync", True, True)],
        )
        made(Plain, seed=9).load_states(file)
        # What goes wrong leaves nothing.
        others = sorted(os.listdir(os.path.dirname(file)))
        for name in ("fsync", "link"):
            error = OSError(errno.ENOSPC, "No space left on device")
            with mock.patch(f"os.{name}", side_effect=error):
                if name == "fsync":
                    with self.assertRaisesRegex(OSError, "No space"):
                        m.save_states(path("full.zip"))
                else:  # a file system without links
                    m.save_states(path("full.zip"))
                    os.remove(path("full.zip"))
            self.assertEqual(sorted(os.listdir(os.path.dirname(file))), others)
        # One that came meanwhile stays.
        with mock.patch("os.path.exists", return_value=False):
            with self.assertRaises(FileExistsError):
                m.save_states(file)

    def test_save_states_refuses(self):
        m = made(Plain)
        file = path("there.zip")
        m.save_states(file)
        with self.assertRaisesRegex(
            FileExistsError, "there.zip exists; remove"
        ):
            m.save_states(file)
        with self.assertRaisesRegex(TypeError, "aux state a is a ndarray"):
            m.save_states(path("new.zip"), {"a": np.ones(1)})
        with self.assertRaisesRegex(
            ValueError, "l.W is a state of the model too"
        ):
            m.save_states(path("new.zip"), {"l.W": tensor.ones((1,))})
        self.assertFalse(os.path.exists(path("new.zip")))

    def test_checkpoints_go_on_bit_for_bit(self):
        x, y = samples()
        for use_graph in (False, True):
            file = path(f"run{use_graph}.safetensors")

            def adam():
                return opt.Adam(lr=opt.ExponentialDecay(0.01, 3, 0.5))

            a = made(use_graph=use_graph, optimizer=adam())
            for _ in range(4):
                a(x, y)
            a.save_checkpoint(file, note="mine")
            losses = [a(x, y)[1].item() for _ in range(4)]
            b = made(use_graph=use_graph, optimizer=adam())
            b.load_checkpoint(file)
            self.assertEqual([b(x, y)[1].item() for _ in range(4)], losses)
            self.same(a, b)
            # Into one that already trains.
            b.load_checkpoint(file)
            self.assertEqual([b(x, y)[1].item() for _ in range(4)], losses)
            self.same(a, b)

    def test_a_loader_goes_on_at_its_place(self):
        images = data.synthetic(20, shape=(1, 1, 5), class_count=3)

        def started(seed):
            loader = data.Loader(images, batch=4, seed=seed)
            return made(optimizer=opt.SGD(lr=0.1)), loader

        def losses(m, loader):
            return [
                m(tensor.reshape(b.x, (-1, 5)), b.y)[1].item() for b in loader
            ]

        file = path("place.safetensors")
        a, loader = started(3)
        losses(a, loader)
        epoch = iter(loader)
        for _ in range(2):
            b = next(epoch)
            a(tensor.reshape(b.x, (-1, 5)), b.y)
        a.save_checkpoint(file, loader, note="mine")
        b, other = started(3)
        b.load_checkpoint(file, loader=other)
        self.assertEqual(other.position, (1, 2))
        self.assertEqual(losses(a, loader), losses(b, other))
        self.same(a, b)
        c, other = started(4)
        with self.assertRaisesRegex(
            StateError, "was saved with seed 3, this run has 4; both must"
        ):
            c.load_checkpoint(file, other)
        with self.assertRaisesRegex(StateError, "call set_optimizer first"):
            Plain().save_checkpoint(file, loader)

    def test_former_names_of_adams_states(self):
        """Files and arrays of versions that said mean and square."""
        x, y = samples()
        file = path("former.safetensors")
        a = made(optimizer=opt.Adam(lr=0.01))
        for _ in range(3):
            a(x, y)
        a.save_checkpoint(file)
        former = {
            name.replace("exp_avg_sq", "square").replace("exp_avg", "mean"): v
            for name, v in a.optimizer.get_states().items()
        }
        with open(file, "rb") as saved:
            data = saved.read()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header["__metadata__"] = {"step": header["__metadata__"]["step"]}
        text = json.dumps(header)
        self.assertEqual(text.count("exp_avg"), len(former) - 1)
        text = text.replace("exp_avg_sq", "square").replace("exp_avg", "mean")
        with open(file, "wb") as saved:
            saved.write(len(text).to_bytes(8, "little"))
            saved.write(text.encode() + data[end:])
        b = made(optimizer=opt.Adam(lr=0.01))
        b.load_checkpoint(file)
        c = made(optimizer=opt.Adam(lr=0.01))
        c.set_states(a.get_states())
        c.optimizer.set_states(former)
        losses = [a(x, y)[1].item() for _ in range(3)]
        for other in (b, c):
            self.assertEqual([other(x, y)[1].item() for _ in range(3)], losses)
            self.same(a, other)

    def test_a_missing_checkpoint_is_named(self):
        m = made(Plain)
        with self.assertRaisesRegex(FileNotFoundError, "no-such.safetensors"):
            m.load_checkpoint(path("no-such.safetensors"))


if __name__ == "__main__":
    unittest.main()
