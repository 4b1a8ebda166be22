"""Interprets a flight recorder's file.

`timeline` has how it went, `findings` what went wrong, `story` one request.
"""
