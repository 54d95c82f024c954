# SPDX-License-Identifier: Apache-2.0
"""What mpirun calls in place of ssh to start a daemon on a host: hands the host and
the command to choirrun, whose agent on that host runs it. So there is one
connection to each host, and the daemon is the guard's there.

    remote_shell.py SOCKET HOST WORD...
"""

import json
import socket
import sys


def main(arguments):
    path, host, *words = arguments
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        # As ssh does, the words of a command are joined; a shell reads them.
        request = {"host": host, "command": " ".join(words)}
        connection.sendall(json.dumps(request).encode() + b"\n")
        for line in connection.makefile():
            answer = json.loads(line)
            if "status" in answer:
                return answer["status"]
            sys.stderr.write(answer["said"])
    # choirrun is gone.
    return 255


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
