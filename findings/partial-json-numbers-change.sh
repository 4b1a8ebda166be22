#!/usr/bin/env bash
# Guess: while an object comes token by token, a number appears once it is complete.
# Seen: partial-json-parser 0.2.1.1.post7 gives each prefix a number: 1, then 12, then 12.5, and 0.0125 once the
# exponent is there.  A minus sign alone takes the key away, a sole t is True, a sole N is NaN.
# Why it matters: tool parsers send the difference of two such results as a call's arguments.  What was sent as
# 12 cannot be taken back when it becomes 0.0125.
. "$(dirname "$0")/in-a-temporary-folder" partial-json-parser==0.2.1.1.post7
python > seen <<'P'
from partial_json_parser import loads

text = '{"n": 12.5e-3'
for end in range(7, len(text) + 1):
    print(text[:end], "->", loads(text[:end]))
for text in ('{"n": -', '{"n": t', '{"n": N'):
    print(text, "->", loads(text))
P
seen_is <<'S'
{"n": 1 -> {'n': 1}
{"n": 12 -> {'n': 12}
{"n": 12. -> {'n': 12}
{"n": 12.5 -> {'n': 12.5}
{"n": 12.5e -> {'n': 12.5}
{"n": 12.5e- -> {'n': 12.5}
{"n": 12.5e-3 -> {'n': 0.0125}
{"n": - -> {}
{"n": t -> {'n': True}
{"n": N -> {'n': nan}
S
