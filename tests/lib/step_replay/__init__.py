"""Replays recorded steps of FastDeploy's token processor on any class; golden_steps/README.md has the format.

`traces` and `compare` are plain; `replay` and `record` load the FastDeploy double and with it Paddle, so a
test module imports them inside tests and fixtures (`quiet.imported`).
"""
