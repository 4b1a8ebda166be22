"""The flight recorder: a process's last events, in a file that outlives it.

`files` has the files and who still writes them, `codes` the words for what entries say; `recorder` writes
them, and `reading` takes a file apart, whatever it holds.
"""
