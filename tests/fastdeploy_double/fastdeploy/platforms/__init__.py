"""The one platform of the double: the op set of CUDA."""


class CUDAPlatform:
    """Answers no to every other platform's question."""

    def is_cuda(self):
        return True

    def __getattr__(self, name):
        if name.startswith("is_"):
            return lambda: False
        raise AttributeError(name)


current_platform = CUDAPlatform()
