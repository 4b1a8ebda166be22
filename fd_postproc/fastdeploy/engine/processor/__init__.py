"""The parts of the token processor that receive steps and make results of them, one task each."""
