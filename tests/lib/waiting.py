"""Waiting for something that other threads or processes do, and doing something at that moment."""

import contextlib
import signal
import threading
import time

PATIENCE = 400
"""Seconds that only a hang takes, however busy the machine; tests that may take 60 end before (setup.cfg)."""


def until(condition, seconds=PATIENCE):
    """What the condition gave in the end; fails if it stays false for longer than any busy machine takes."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)
    return found


def when(condition, call, *args):
    """Make a call once a condition holds; the thread that does."""

    def run():
        until(condition)
        call(*args)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@contextlib.contextmanager
def signalled(handler, condition, repeat=False):
    """Once a condition holds, let signals interrupt the main thread until the handler has run, or to the end.

    A signal that comes between the last look at the condition and the system call interrupts nothing: so
    there are several.  The handler of the first alone runs, unless `repeat`.
    """
    main, over, calls = threading.main_thread().ident, threading.Event(), []

    def handle(*arguments):
        if repeat or not calls:
            calls.append(True)
            handler(*arguments)

    def send():
        until(condition)
        while not over.wait(0.02) and (repeat or not calls):
            signal.pthread_kill(main, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handle)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)
