"""What a flight recorder's file means.

`picture` has how it went, `findings` what went wrong, `story` one request.
"""
