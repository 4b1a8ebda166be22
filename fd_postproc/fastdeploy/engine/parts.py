"""The parts of a token processor, and how they are joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lifecycle import Lifecycle
from .processor.draft_gauges import DraftGauges
from .processor.ending import Ending
from .processor.flight_record import Recording
from .processor.health_check import HealthCheck
from .processor.journal import Journal
from .processor.loop import Loop
from .processor.object_step import Streamed
from .processor.pairing import Pairing
from .processor.queue_source import QueueSource
from .processor.reporter import Reporter
from .processor.request import Requests
from .processor.socket_source import SocketSource
from .processor.step import Steps
from .processor.tracing import Tracing
from .processor.transfers import Transfers

if TYPE_CHECKING:
    from .processor.host import Host


class Parts:
    """All parts of one token processor; each gets those that it calls, and the processor as its host.

    They read nothing of the host while they are made: FastDeploy's tests make objects without ``__init__``.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self.journal = journal = Journal(lambda: host.fd.llm_logger)
        self.tracing = Tracing(host, journal)
        self.transfers = Transfers(host, journal)
        self.ending = Ending(host, journal, self.tracing, self.transfers)
        self.requests = Requests(host, journal, self.tracing, self.ending)
        self.pairing = Pairing(host, journal)
        self.gauges = DraftGauges(host, journal)
        self.steps = Steps(host, journal, self.requests, self.ending, self.pairing, self.gauges)
        self.streamed = Streamed(host, journal, self.requests, self.steps)
        self.queue, self.socket = QueueSource(host, journal), SocketSource(host, journal)
        self.recording = Recording(host, journal, self.queue, self.transfers)
        self.loop = Loop(host, journal, self.ending, self.pairing)
        self.health = HealthCheck(
            host, journal, self.loop, self.queue, self.recording, self.transfers, self.pairing
        )
        self.lifecycle = Lifecycle(host, journal, self.pairing, self.loop)

    def receive_messages(self) -> None:
        """Receive and process the queue's messages until `Loop.stop`."""
        self.tracing.name_thread()
        self.loop.run(self.queue, self.steps, self.reporter())

    def receive_from_socket(self) -> None:
        """Receive and process the socket's steps until `Loop.stop`; raises as `SocketSource.open`."""
        self.socket.open()
        self.loop.run(self.socket, self.streamed, self.reporter())

    def reporter(self) -> Reporter:
        """The reporter of a loop."""
        return Reporter(self.journal, self.gauges, self.recording, self._host.fd.llm_logger)
