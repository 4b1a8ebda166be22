"""``rdma_comm``, FastDeploy's library for network cards, without one: a prefill node's cache reaches nobody.

A connection is one over TCP: who is connected to notices that the other is gone.  What `write_cache` does is
in the file that ``FD_SERVICE_TRANSFER`` names: seconds of each request's transfer, and whether it fails.
"""

import json
import os
import socket
import threading
import time
from pathlib import Path


class RDMACommunicator:
    """FastDeploy's class of this name, as far as `RDMACommManager` asks it."""

    def __init__(self, role, device, port, *caches_and_sizes):
        self._connections = {}
        if role == "decode":
            server = socket.create_server(("0.0.0.0", int(port)))
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()

    def _accept(self, server):
        while True:
            client = server.accept()[0]
            self._connections[client.fileno()] = client

    def is_connected(self, ip, port):
        """Whether the decode node's end is open: it never sends a byte, only its end."""
        connection = self._connections.get((ip, port))
        if connection is None:
            return False
        try:
            return connection.recv(1, socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def connect(self, ip, port, tp_size):
        """0, or -1 if nobody listens."""
        try:
            connection = socket.create_connection((ip, int(port)), timeout=5)
        except OSError:
            return -1
        connection.settimeout(None)  # a time limit would hold in `is_connected`, too
        self._connections[ip, port] = connection
        return 0

    def write_cache(self, ip, port, local_blocks, remote_blocks, layer):
        """0, at once or late, or -1."""
        path = os.environ.get("FD_SERVICE_TRANSFER")
        wanted = json.loads(Path(path).read_text()) if path and os.path.exists(path) else {}
        if layer == 0:
            time.sleep(wanted.get("seconds", 0))
        return -1 if wanted.get("fails") else 0
