"""The stock model runner: a name to fall back to."""


class GPUModelRunner:
    """Does nothing here; a plug-in's runner is told from it by its class."""
