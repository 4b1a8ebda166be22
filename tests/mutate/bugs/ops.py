"""Planted bugs of FastDeploy's ops by name."""

from tests.mutate.bug import in_file

OPS = "fd_postproc/ops"
SAVES = "tests/ops/test_save_ops.py tests/ops/test_save_limits.py tests/ops/test_save_environment.py"

BUGS = [
    in_file(
        f"{OPS}/packer.py",
        "tests/cuda/saves/test_packer.py",
        (
            "every op heeds save_each_rank",
            'any_rank = op.startswith("mtp") and arguments["save_each_rank"]',
            'any_rank = arguments.get("save_each_rank", False)',
        ),
        ("a copied tensor is taken", "if isinstance(value, HostInput) and value.copied:", "if False:"),
        (
            "the flag is not checked",
            'check_flag(arguments.get("message_flag", 0))',
            'arguments.get("message_flag", 0)',
        ),
        (
            "a batch beyond the tensors",
            'whole_number(batch, "batch", 0, held,',
            'whole_number(batch, "batch", 0, held + 1,',
        ),
        (
            "unknown arguments",
            'if name not in wanted]:\n            raise TypeError(f"{op} has no',
            'if name is None]:\n            raise TypeError(f"{op} has no',
        ),
    ),
    in_file(
        f"{OPS}/arguments.py",
        "tests/ops/test_arguments.py tests/ops/test_save_environment.py",
        ("a tensor that is too short", "inputs[role].size < batch:", "inputs[role].size < batch - 1:"),
        ("scores of another shape", "if scores.shape != ids.shape:", "if scores.shape[0] != ids.shape[0]:"),
        (
            "a flag that nobody knows",
            "if flag not in (0, TARGET, DRAFT):",
            "if flag not in (0, 1, 2, TARGET, DRAFT):",
        ),
        ("rank 1 is first", "rank_id <= 0", "rank_id <= 1"),
        ("rows beyond the ranks", "min(ids.shape[0], ranks.size)", "ids.shape[0]"),
        (
            "several columns of one token",
            'if width != 1 and "counts" not in inputs',
            'if width > 2 and "counts" not in inputs',
        ),
    ),
    in_file(
        f"{OPS}/pool.py",
        "tests/ops/test_ops.py tests/ops/test_save_ops.py",
        ("counters of a gone queue are forgotten", "_add(self._gone, end.stats)", "pass"),
        (
            "an end of a gone queue is used again",
            "if gone:\n            self.members.remove(end)",
            "if False:\n            self.members.remove(end)",
        ),
    ),
    in_file(
        f"{OPS}/receive.py",
        "tests/ops/test_ops.py",
        ("k beyond the layout", "not 0 <= k <= layout.top_k:", "not 0 <= k <= layout.top_k + 1:"),
        ("every rank receives", "if is_first(rank_id) or get_each_rank:", "if True:"),
        ("no sentinel where nothing came", "words[0] = -2", "words[0] = 0"),
        ("one header word keeps its value", "words[1:] = [0] * (len(words) - 1)", "words[1:2] = [0]"),
        ("a column too few", "addresses[2], k + 1, wait)", "addresses[2], max(k, 1), wait)"),
    ),
    in_file(
        "fd_postproc/checks.py",
        "tests/project/test_every_argument.py tests/core/test_numbers.py",
        ("a bool is a number", "if isinstance(value, bool):", "if value is None:"),
        ("negative times", "if not number >= 0:", "if number < -1e9:"),
        ("permissions of nobody", "mode & 0o600 != 0o600", "mode & 0o400 != 0o400"),
        ("the bounds are one off", "if not low <= number <= high:", "if not low <= number <= high + 1:"),
        ("a NUL in a path", 'if "\\0" in text:', 'if "\\1" in text:'),
    ),
    in_file(
        "fd_postproc/queues.py",
        "tests/core/test_queues.py tests/core/test_receiver.py",
        ("the key takes more of the number", "queue_id & 0xFFFFF\n", "queue_id & 0xFFFFFF\n"),
        ("libc keys of other bits", "key = (queue_id & 0xFF) << 24", "key = (queue_id & 0x7F) << 24"),
        ("who may use a queue is not told", "if queue.mode & 0o066:", "if queue.mode & 0o006 == 0o007:"),
        (
            "removing a missing queue fails",
            "except sysv_ipc.ExistentialError:\n        pass\n    except",
            "except sysv_ipc.ExistentialError:\n        raise\n    except",
        ),
        ("the owner is not told", "if queue.uid != os.geteuid():", "if queue.uid == -1:"),
    ),
]
