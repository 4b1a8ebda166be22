"""Interprets a flight recorder's file.

`timeline` has how it went, `findings` what went wrong (by side of the cause: `engine_side`, `worker_side`,
`queue_side`, `requests`), `story` one request.  The words and numbers are those of `fd_postproc.faults`.
"""
