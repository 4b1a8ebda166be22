"""A scheduler's log whose code the gate knows: the double's versions have none."""


class Log:
    def __init__(self):
        self.tokens = 0

    def on_decode_tokens(self, count):
        self.tokens += count
