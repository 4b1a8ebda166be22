"""Every channel, dialect and size from a device: too large for this process's limits, so in another."""

import random
import subprocess

from tests.lib.children import python
from tests.lib.device_saves import PRELUDE
from tests.lib.waiting import PATIENCE

MATRIX = """
from tests.lib.save_cases import CHANNELS, arguments, random_inputs
from fd_postproc import queues
from tests import reference
from tests.reference.frames import checksum_of
import sysv_ipc, random
rng = random.Random(int(sys.argv[1]))
for op, channel in CHANNELS.items():
    for dialect in "packed", "legacy", "compact":
        os.environ["FD_POSTPROC_DIALECT"] = dialect
        for batch, cols in [(1, 1), (rng.randrange(4, 256), 2 + rng.randrange(20)), (256, 6), (512, 21)]:
            if channel == "spec" and dialect != "compact" and batch > 256:
                continue
            inputs = random_inputs(op, batch, cols, rng.randrange(1 << 30))
            kind = rng.choice([stub_cuda.Exchange, stub_cuda.Other])
            gap = rng.randrange(2)
            first = next(iter(inputs))
            tensors = {name: value if name == "not_need_stop" or name != first and rng.random() < 0.3
                       else kind(value, gap=gap) for name, value in inputs.items()}
            queue, sent = None, []
            for given in inputs, tensors:
                getattr(ops, op)(*arguments(op, given))
                assert ops.flush(20)
                queue = queue or sysv_ipc.MessageQueue(queues.locate(channel), max_message_size=1 << 20)
                sent.append([queue.receive(block=False) for _ in range(queue.current_messages)])
            where = (op, dialect, batch, cols)
            assert len(sent[0]) == len(sent[1]) and (dialect == "compact" or len(sent[0]) == 1), where
            for (host, host_type), (payload, mtype) in zip(*sent):
                assert mtype == host_type and len(payload) == len(host), where
                # Of a frame, all but its number and sender, and the checksum, of which they are part.
                written = [range(0, 40), range(56, 60), range(64, len(host))]
                if dialect != "compact":
                    written = reference.save(op, *arguments(op, inputs), dialect=dialect).written
                for part in written:
                    assert payload[part.start:part.stop] == host[part.start:part.stop], (where, part)
            for pieces in sent if dialect == "compact" else []:
                whole = b"".join(payload[64 if k else 0:] for k, (payload, _) in enumerate(pieces))
                header = reference.FrameHeader.unpack(whole)
                assert (header.features, header.checksum) == (1, checksum_of(whole)), where
print("done")
"""


def test_every_channel_dialect_and_size(raised_limits, environment):
    """Byte for byte what host tensors give."""
    code = PRELUDE + MATRIX
    seed = random.SystemRandom().randrange(1 << 30)
    done = subprocess.run(
        python(code, seed), env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "done\n", f"seed {seed}: {done.stderr}"
