"""An event loop without a wall clock, and a limit of work instead of one of time."""

import asyncio
import selectors
import threading
import time

WORK_S, IDLE_S = 60.0, 60
"""CPU seconds, and seconds in which a thread takes none, that one script may take."""


class _Selector(selectors.DefaultSelector):
    """Where nothing is ready, time passes up to the next timer; nothing waits."""

    now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("waits for something that never comes")
        if not ready:
            self.now += max(timeout, 0)
        return ready


class Loop(asyncio.SelectorEventLoop):
    """Event loop whose time is its own: a busy machine makes no time limit run out."""

    def __init__(self):
        self._times = _Selector()
        super().__init__(self._times)

    def time(self):
        return self._times.now

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Watched:
    """Runs a function in a thread of its own, for as long as it goes on.

    Parameters
    ----------
    run : callable
        It is given a function to call after each script.
    cpu, sleep : callable, optional
        The process's CPU seconds; a wait for one second at most that ends with the thread.
    """

    def __init__(self, run, cpu=time.process_time, sleep=None):
        self.run, self.cpu = run, cpu
        self.scripts, self.outcome = 0, None
        self.thread = threading.Thread(target=self._target, name="fd_postproc trial", daemon=True)
        self.sleep = sleep or (lambda: self.thread.join(1))

    def result(self):
        """What the function returns; raises what it raises, or TimeoutError where it does not go on."""
        self.thread.start()
        seen, begin, last, idle = -1, 0.0, 0.0, 0
        while self.thread.is_alive():
            self.sleep()
            used = self.cpu()
            if self.scripts != seen:
                seen, begin, idle = self.scripts, used, 0
            else:
                idle = idle + 1 if used - last < 0.01 else 0
            last = used
            if used - begin > WORK_S:
                raise TimeoutError(
                    f"script {seen} has taken {used - begin:.0f} s of CPU time, the limit is {WORK_S:.0f}: "
                    "FastDeploy's code or ours does not end there"
                )
            if idle >= IDLE_S:
                raise TimeoutError(
                    f"script {seen} has taken no CPU time for {idle} s: "
                    "FastDeploy's code or ours waits there for something that does not come"
                )
        value, error = self.outcome
        if error is not None:
            raise error
        return value

    def went_on(self):
        """Note that a script has ended."""
        self.scripts += 1

    def _target(self):
        try:
            self.outcome = self.run(self.went_on), None
        except BaseException as error:
            self.outcome = None, error
