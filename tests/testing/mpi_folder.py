# SPDX-License-Identifier: Apache-2.0
"""A folder of this test's own for what Open MPI writes while it runs.

Open MPI names its folder in TMPDIR and its memory in /dev/shm by process id.
Bazel's sandboxes share both but number processes each for itself, so two tests at
a time would meet, and version 5 refuses a folder that is there.
"""

import atexit
import functools
import shutil
import tempfile


@functools.cache
def environment():
    """What to add to mpiexec's environment. The folder goes with this process; its
    name is short, as paths of sockets have 108 characters at most."""
    folder = tempfile.mkdtemp(prefix="choir-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return {"TMPDIR": folder, "OMPI_MCA_btl_vader_backing_directory": folder}
