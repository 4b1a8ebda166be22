"""Planted bugs of the API server's side."""

from tests.mutate.bug import in_file

API = "fd_postproc/fastdeploy/api"
TESTS = "tests/plugin/api"
UNPACKING = f"{TESTS}/test_unpacking.py"
ACTIVATION = f"{TESTS}/test_activation.py"
QUEUES = f"{TESTS}/test_queues.py"
STEADY = f"{TESTS}/test_steady.py"
PARSERS = f"{TESTS}/test_parsers.py"
WORDS = f"{TESTS}/test_word_counts.py"
PIECES = f"{TESTS}/test_pieces.py"

BUGS = [
    in_file(
        f"{API}/chunks/_chat_logprobs.pxi",
        f"{UNPACKING} {TESTS}/test_logprobs.py",
        (
            "room for packed scores counts floats of eight bytes",
            "(top.size - top.scores) // 5",
            "(top.size - top.scores) // 9",
        ),
        (
            "ids that are longer than scores",
            "n = min(wide, long, <size_t>most)",
            "n = min(wide, <size_t>most)",
        ),
        (
            "packed rows that are empty",
            "if n == 0:\n            raise Unknown",
            "if n > 99:\n            raise Unknown",
        ),
        (
            "columns that were not asked for",
            "most = min(columns, 1 << 40) + 1\n        made = _resolved(self.texts if decode",
            "most = min(columns, 1 << 40) + 2\n        made = _resolved(self.texts if decode",
        ),
        (
            "lists that change are read on",
            "if i >= PyList_GET_SIZE(ids) or i >= PyList_GET_SIZE(scores):",
            "if False:",
        ),
        ("large integers lose digits", "if not overflow and -(1 << 53) <= n <= 1 << 53:", "if not overflow:"),
    ),
    in_file(
        f"{API}/chunks/_steady.pxi",
        STEADY,
        (
            "a woken task's stream is written on",
            "self.is_ours and self.queue.waiter is not self.waiter",
            "False",
        ),
        (
            "tokens are not given back",
            "for i in range(self.given, self.used):",
            "for i in range(self.used, 0):",
        ),
        (
            "a character that is not complete is passed over",
            "prefix, read = self.prefix, self.read\n            if",
            "pass\n            if",
        ),
        (
            "broken bytes before are taken for whole",
            "self.whole = count, prefix, read, whole",
            "self.whole = count, prefix, read, True",
        ),
        ("a stream is told by its place only", "or memcmp(stream.name, result.id, result.id_size)):", "):"),
        ("a stream that has ended is written on", "not stream.is_set or ", ""),
    ),
    in_file(
        f"{API}/chunks/_queue.pxi",
        QUEUES,
        (
            "who was told and goes takes the item along",
            "if self.queue.items and not future.cancelled():",
            "if False:",
        ),
        ("the timer is not set again", "if first != _NEVER:\n            self.arm(first)", "pass"),
        ("a wait that is over is kept", "self.queue.waits.remove(self)", "pass"),
        (
            "the first wait only has a limit",
            "if one.deadline < self.armed:",
            "if self.armed == _NEVER and not self.waits[1:]:",
        ),
        ("a timer keeps the queue", "_times_up, _weakref(self))", "_times_up, lambda: self)"),
    ),
    in_file(
        f"{API}/stream_queue.py",
        QUEUES,
        ("joining ends at once", "if self._unfinished_tasks > 0:", "if self._unfinished_tasks < 0:"),
        (
            "a queue with a limit has none",
            "return asyncio.Queue(*arguments, **options) if arguments or options else Queue()",
            "return Queue()",
        ),
        (
            "the trial's outcome is ignored",
            "if difference:\n        raise NotPlain(difference)",
            "if False:\n        raise NotPlain(difference)",
        ),
    ),
    in_file(
        f"{API}/chunks/model_fields.py",
        f"{TESTS}/test_models.py",
        (
            "constraints of fields are not kept",
            "if info.metadata:  # constraints",
            "if False:  # constraints",
        ),
        (
            "constraints are looked at without their bounds",
            "if info.metadata else info.annotation",
            "if not info.metadata else info.annotation",
        ),
        (
            "a configured class is stood in for",
            "raise NotPlain(f\"{cls.__name__} is configured: {', '.join(more)}\")",
            "pass",
        ),
        (
            "classes with methods of their own",
            "if getattr(cls, name, None) is not getattr(base, name, None):",
            "if False:",
        ),
    ),
    in_file(
        f"{API}/chunks/building_blocks.py",
        ACTIVATION,
        (
            "a builder of another processor is used again",
            "if self.last() is not processor:",
            "if self.last() is None:",
        ),
        ("methods with other arguments", "or _parameters(stock) != _PARAMETERS[name]:", "or False:"),
        (
            "a tokenizer that refuses is not noted",
            'note("the tokenizer refuses a token id")\n        return stock(\n            handler',
            "pass\n        return stock(\n            handler",
        ),
        ("a module that names nothing", "if not made.names and not made.methods:", "if False:"),
    ),
    in_file(
        "fd_postproc/fastdeploy/seams.py",
        "tests/project/test_seams.py",
        ("what is taken out stays", "setattr(holder, name, stock)", "pass"),
        (
            "what was inherited becomes the class's own",
            "delattr(holder, name)",
            "setattr(holder, name, stock)",
        ),
        ("another's is taken out, too", "if vars(holder).get(name) is not ours:", "if False:"),
        ("an attribute that the table does not list", "if name not in self.seam.attributes:", "if False:"),
        (
            "a second replacement restores the first",
            "if where is holder and what == name and",
            "if False and",
        ),
        (
            "a class that only inherits is taken",
            "and method in vars(one) and",
            "and hasattr(one, method) and",
        ),
    ),
    in_file(
        f"{API}/activation.py",
        ACTIVATION,
        (
            "active although the trial found a difference",
            "active = verdict.compatible or forced",
            "active = blocks is not None",
        ),
        ("forced without being asked", "blocks is not None and is_on(FORCE)", "blocks is not None"),
        ("the gauge says what is not so", 'export_active("api", active)', 'export_active("api", True)'),
        ("nothing is counted", "counters.begin()", "pass"),
    ),
    in_file(
        f"{API}/trial.py",
        ACTIVATION,
        ("blind to differences of equal length", "if theirs != own:", "if len(theirs) != len(own):"),
        ("whole answers are not tried", "for stream in (True, False):", "for stream in (True, True):"),
        ("streams are not tried", "for stream in (True, False):", "for stream in (False, False):"),
        ("a chunk less is nothing", "if len(expected) != len(actual):", "if False:"),
        ("a FastDeploy that fails is compared", "if failed > _MOST_FAILURES:", "if failed > 999:"),
        (
            "ours is tried beside ours",
            "stock = Side(module, Blocks())",
            "stock = Side(module, blocks)",
        ),
    ),
    in_file(
        f"{API}/canned.py",
        ACTIVATION,
        ("always one alternative", "width = columns + 1", "width = min(columns, 1) + 1"),
    ),
    in_file(
        f"{API}/entry.py",
        ACTIVATION,
        ("the switch is ignored", "if is_on(DISABLE) or not is_on(API):", "if is_on(DISABLE):"),
        ("the general switch is ignored", "if is_on(DISABLE) or not is_on(API):", "if not is_on(API):"),
    ),
    in_file(
        f"{API}/counters.py",
        ACTIVATION,
        ("a counter is never raised", "total.labels(reason).inc()", "total.labels(reason)"),
        ("every note is a line", 'if str(count).strip("0") == "1":', "if True:"),
        ("trials count", "forget_totals()", "pass"),
    ),
    in_file(
        f"{API}/connections.py",
        f"{TESTS}/test_connections.py",
        ("early results without a limit of bytes", "while self.size > MOST_BYTES:", "while False:"),
        ("the smallest loses its early results", "self._drop(max(self.held", "self._drop(min(self.held"),
        ("a request that lost its results waits", "if why and self.clock()", "if False and self.clock()"),
        ("an old loss ends a new request", "since < KEEP_EARLY_S:", "since >= 0:"),
    ),
    in_file(
        f"{API}/excerpt.py",
        f"{TESTS}/test_excerpt.py",
        (
            "a mark is lost of which the beginning has come",
            "self._open = max(map(len, marks.texts)) - 1",
            "self._open = 0",
        ),
        (
            "newlines between marks are a letter",
            'yield _SOMETHING if part.strip("\\n") else "\\n"',
            "yield _SOMETHING",
        ),
        (
            "the last tool call is shortened",
            "if first <= begin < last or len(part) < 2:",
            "if len(part) < 2:",
        ),
        (
            "a mark's id comes each time",
            "if (one in self.marks.ids and one not in self.ids) or not self.ids:",
            "if one in self.marks.ids or not self.ids:",
        ),
        (
            "the first id is no id",
            "if (one in self.marks.ids and one not in self.ids) or not self.ids:",
            "if one in self.marks.ids and one not in self.ids:",
        ),
        ("nothing is shortened", "if len(self.text) > self._next:", "if False:"),
    ),
    in_file(
        f"{API}/answer_text.py",
        f"{TESTS}/test_excerpt.py",
        (
            "every text is equal",
            "return self.whole() == (other.whole() if isinstance(other, AnswerText) else other)",
            "return True",
        ),
        ("the first text is lost", "        self.append(text)\n", "        pass\n"),
    ),
    in_file(
        f"{API}/known_parsers.py",
        PARSERS,
        ("any parser is known", 'or not function.__module__.startswith("fastdeploy.")', "or False"),
        (
            "code of any kind",
            'if more:\n            raise NotPlain(f"{cls.__name__} looks at',
            'if False:\n            raise NotPlain(f"{cls.__name__} looks at',
        ),
        ("marks of any kind", "if not SHAPE.fullmatch(value):", "if False:"),
        ("the trial's outcome is ignored", "if expected != actual:", "if False:"),
        (
            "tool parsers are not tried",
            "if calls is not None:\n                    parsers",
            "if False:\n                    parsers",
        ),
        (
            "each tool parser makes a vocabulary",
            "random.Random(36), OneVocabulary(tokenizer)",
            "random.Random(36), tokenizer",
        ),
    ),
    in_file(
        f"{API}/parsers.py",
        PARSERS,
        (
            "parsers that have been replaced are used",
            "known[0]() is processor and known[1].made_for == now:",
            "known[0]() is processor:",
        ),
        (
            "an output fallback is overlooked",
            "if getattr(processor, OUTPUT_FALLBACK, None) is not None:",
            "if False:",
            f"{PARSERS} {TESTS}/test_unified_processor.py",
        ),
        (
            "a class with its own ids2tokens",
            'if cls.ids2tokens is not self.ids2tokens or "ids2tokens" in vars(processor):',
            "if False:",
        ),
        (
            "the environment's tokenizer is overlooked",
            "if stock.is_left_to_fastdeploy():\n                return None",
            "if False:\n                return None",
        ),
        (
            "an excerpt for other marks",
            "is not AnswerText or status[3].marks is not marks:",
            "is not AnswerText:",
        ),
        (
            "methods that do more",
            "if more and OUTPUT_FALLBACK not in more:",
            "if False:",
        ),
        (
            "ids of any type",
            "if status is None or type(token_id) is not list:",
            "if status is None:",
            "equivalent: FastDeploy's handlers hand in lists; a tuple's ids are added as a list's",
        ),
        (
            "the first client waits for the trial",
            "views_of(processor)  # before the first client waits for it",
            "pass",
        ),
        ("usage that is asked for is not counted", 'getattr(request, "stream_options", ...) is None', "True"),
        ("whole answers are not counted", 'getattr(request, "stream", None) is True', "True"),
        ("others' requests are not counted", "and cls.__module__ == PROTOCOL", ""),
        (
            "whole answers without an end",
            'views.last if response_dict["finished"] else views.part',
            "views.part",
        ),
    ),
    in_file(
        f"{API}/token_counts.py",
        f"{TESTS}/test_token_counts.py",
        (
            "counts of a tokenizer that samples are kept",
            'return not getattr(model, "_enable_sampling", True)',
            "return True",
        ),
        (
            "the last prompt's truncation counts",
            "if library.truncation is not None or library.padding is not None:",
            "if False:",
        ),
        ("counts by chance", 'if getattr(library.model, "dropout", None):', "if False:"),
        ("any number of texts", "if len(self._counts) >= _MOST:", "if False:"),
        ("a token that is added later", "if self._vocabulary[0] != size:", "if self._vocabulary[0] is None:"),
        (
            "the vocabulary is made to be counted",
            "return len(self._tokenizer) if added is None else (library.get_vocab_size(False), len(added()))",
            "return len(self._tokenizer)",
        ),
    ),
    in_file(
        f"{API}/token_counts.py",
        WORDS,
        (
            "words of an added token",
            "self._count = counter(self._tokenizer)\n",
            "pass\n",
        ),
    ),
    in_file(
        f"{API}/word_counts.py",
        WORDS,
        ("letters that a newer Unicode has", 'if now[0] in "LNZMC"', 'if now[0] in ""'),
        ("a letter that folds to one of ASCII", "not (len(folded) == 1 and folded.isascii())", "True"),
        ("the space among the controls", "if code > _CONTROLS and is_sure:", "if code > 0x7F and is_sure:"),
        (
            "texts that the normalizer changes",
            "(form is not None and not unicodedata.is_normalized(form, text))",
            "False",
        ),
        ("added tokens", "if has_added(text):", "if False:"),
        (
            "added tokens of the normalizer's form",
            "added |= {unicodedata.normalize(form, one) for one in added}",
            "pass",
        ),
        ("text between the words", 'if "".join(words) != kinds:', "if False:"),
        ("any number of words", "if len(self) >= MOST:", "if False:"),
        ("words of any length", "if len(word) <= LONGEST:", "if True:"),
        ("the trial of the words", 'raise NotPlain("words are counted otherwise")', "pass"),
        ("a space in front", 'level.get("add_prefix_space") is not False', "False"),
        ("texts that are split twice", 'if level.get("use_regex", True) is (split != {}):', "if False:"),
        (
            "words that are removed",
            '"Split",\n        "Isolated",\n        False,',
            '"Split",\n        split.get("behavior"),\n        False,',
        ),
        ("groups are found in the place of words", "if known.groups:", "if False:"),
        (
            "a word is counted where the last one ended",
            "made += counts[text[at : at + len(word)]]",
            "made += counts[word]",
        ),
    ),
    in_file(
        f"{API}/chunks/_piece_decoder.pxi",
        PIECES,
        ("a piece behind others has its first text", "piece[0] if at_start else piece[1]", "piece[0]"),
        (
            "a special token ends no run",
            "            if kind == PIECE_ENDS_RUN:\n                    at_start = True",
            "            if kind == PIECE_ENDS_RUN:\n                    at_start = False",
        ),
        (
            "a dropped piece is no beginning",
            "at_start = at_start and self.stays_at_start and PyBytes_GET_SIZE(text) == 0",
            "at_start = False",
        ),
        (
            "a piece with a text is a beginning",
            "at_start = at_start and self.stays_at_start and PyBytes_GET_SIZE(text) == 0",
            "at_start = at_start and self.stays_at_start",
        ),
        ("a control token changes something", "elif kind == PIECE_PLAIN:", "else:"),
        (
            "the window that does not grow is read on",
            "if read == count or window.used == before_size:",
            "if read == count:",
        ),
        ("windows that are out of range", "if not 0 <= prefix <= read <= count:", "if False:"),
        (
            "a replacement character before",
            'if "\\ufffd" in before or "\\ufffd" in text:',
            'if "\\ufffd" in text:',
        ),
        (
            "a replacement character in the new text",
            'if "\\ufffd" in before or "\\ufffd" in text:',
            'if "\\ufffd" in before:',
        ),
        ("ids of any type", "if not PyLong_CheckExact(token) or not -1 <", "if not -1 <"),
        ("ids behind the last one", "-1 < token < PyList_GET_SIZE(self.known)", "-1 < token"),
        ("pieces are asked again", "self.known[<long>token] = piece\n        return piece", "return piece"),
        (
            "a character that is not complete",
            'except UnicodeDecodeError:\n        return "", prefix, read',
            'except UnicodeDecodeError:\n        return "", prefix, count',
        ),
        ("the window moves by all", "return text, read, count", "return text, prefix, count"),
    ),
]
