"""Write the API reference from the docstrings of the installed package.

    python docs/generate_api.py FILE

The site's API page is the reference (.ci/checks/site).  Every name in a module's ``__all__`` is described, in
the order of the list below and of the class body.  The texts live in the docstrings only: change them there.
"""

import ast
import enum
import importlib
import inspect
import itertools
import re
import sys
import textwrap
from pathlib import Path

import fd_postproc

MODULES = [
    "fd_postproc",
    "fd_postproc.ops",
    "fd_postproc.queues",
    "fd_postproc.recording",
]
# Read in this order; names that are not here follow as they come in __all__.
FIRST = ["Receiver", "Sender", "Step", "Logprobs", "decode", "encode", "Layout", "GPU", "XPU"]
INTRODUCTION = """\
# API reference

Made from the docstrings by `docs/generate_api.py`: do not edit it here. Names that are not on this page may
change at any time.

    import fd_postproc as fp

**Channels** are `"plain"`, `"topk"`, `"spec"`, `"spec_topk"`; **dialects** are `"packed"` and `"legacy"`,
FastDeploy's, and `"compact"`, ours ([wire-protocol.md](wire-protocol.md)). What the environment decides is in
[environment.md](environment.md).
"""
SECTIONS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Notes", "Examples", "See Also")
SPECIAL = ("__iter__", "__len__")


class Shown:
    """Something that prints as the words it is given."""

    def __init__(self, words):
        self.words = words

    def __repr__(self):
        return self.words


def stub_signatures():
    """What the compiled module's stub says of each function and method: ``Receiver.receive`` -> arguments.

    (Cython's own text puts the star of keyword-only arguments in the wrong place.)
    """
    found = {}

    def look(body, prefix):
        for node in body:
            if isinstance(node, ast.ClassDef):
                look(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                arguments = node.args
                for argument in (*arguments.args, *arguments.kwonlyargs):
                    argument.annotation = None
                if prefix:
                    del (arguments.posonlyargs or arguments.args)[0]  # self
                words = ast.unparse(arguments).replace("layout=...", "layout=GPU")
                found.setdefault(prefix + node.name, f"({words})")  # of overloads the first

    look(ast.parse(Path(fd_postproc._core.__file__).with_name("_core.pyi").read_text()).body, "")
    return found


def signature(name, thing, stubs):
    """``name(arguments)``, without annotations."""
    of = thing.__qualname__ + (".__init__" if isinstance(thing, type) else "")
    if of in stubs:
        return name + stubs[of].replace("mode=384", "mode=0o600")
    bare = []
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.default is fd_postproc.GPU:
            parameter = parameter.replace(default=Shown("GPU"))
        elif parameter.name in ("mode", "access") and isinstance(parameter.default, int):
            parameter = parameter.replace(default=Shown(f"0o{parameter.default:o}"))
        bare.append(parameter.replace(annotation=inspect.Parameter.empty))
    return name + str(inspect.Signature(bare))


def documentation(thing):
    text = inspect.cleandoc(thing.__doc__ or "")
    first, _, rest = text.partition("\n")
    if re.fullmatch(r"[\w.]+\(.*\)( -> .*)?", first):  # Cython's signature
        text = inspect.cleandoc(rest)
    return text


def markdown(text):
    """reStructuredText as the docstrings have it, as Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def render(text):
    """A NumPy-style docstring as Markdown: its sections become lists."""
    parts = re.split(rf"^({'|'.join(SECTIONS)})\n-+\n", text, flags=re.M)
    out = [markdown(parts[0].strip())]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        body = body.strip("\n")
        if title in ("Notes", "Examples"):
            out.append(f"*{title}.*\n\n{markdown(body.strip())}")
        else:
            out.append(f"*{title}*\n\n" + "\n".join(entries(body, title)))
    return "\n\n".join(part for part in out if part)


def entries(body, title):
    """``name : type`` and an indented text each -> a list."""
    for entry in re.split(r"\n(?=\S)", body):
        head, _, text = entry.partition("\n")
        name, colon, kind = head.partition(" : ")
        if colon or title in ("Parameters", "Attributes"):
            head = f"`{name}`" + (f", {markdown(kind)}" if kind else "")
        elif title == "Raises":
            head = f"`{head}`"
        text = " ".join(markdown(textwrap.dedent(text)).split())
        yield f"* {markdown(head)}" + (f": {text}" if text else "")


def members(cls, stubs):
    """Public names of a class with a docstring of their own, as they stand in its body."""
    for name, member in vars(cls).items():
        if name.startswith("_") and name not in SPECIAL:
            continue
        if isinstance(member, (classmethod, staticmethod)):
            member = getattr(cls, name)
        text = documentation(member)
        if not text or not (inspect.isroutine(member) or inspect.isdatadescriptor(member)):
            continue  # a field's default
        if "Alias for field" in text:
            continue
        yield signature(f".{name}", member, stubs) if callable(member) else f".{name}", text


def described(name, thing, module, stubs):
    """One name's part of the page."""
    if isinstance(thing, type):
        plain = issubclass(thing, (BaseException, enum.Enum)) or not has_constructor(thing)
        yield f"### `{name if plain else signature(name, thing, stubs)}`"
        bases = [base.__name__ for base in thing.__bases__ if base is not object]
        if bases:
            yield f"A kind of {', '.join(f'`{base}`' for base in bases)}."
        yield render(documentation(thing))
        for heading, text in members(thing, stubs):
            yield f"#### `{heading}`"
            yield render(text)
    elif callable(thing):
        yield f"### `{signature(name, thing, stubs)}`"
        yield render(documentation(thing))
    else:
        yield f"### `{name}`"
        yield assigned_text(module, name) or f"`{thing!r}`"


def has_constructor(cls):
    """Steps and their parts are made by functions, and the results of others are not made by callers."""
    return cls.__name__ not in ("Step", "Logprobs")


def assigned_text(module, name):
    """The string below ``name = ...`` in the source of a module, or of `fd_postproc.core.layout`."""
    for source in module, fd_postproc.core.layout:
        for node, text in itertools.pairwise(ast.parse(Path(source.__file__).read_text()).body):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            if [getattr(target, "id", None) for target in targets] == [name] and isinstance(text, ast.Expr):
                return markdown(inspect.cleandoc(text.value.value))
    return None


def public():
    """Each module of the list with its public names, in the order of the pages."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        names = [name for name in module.__all__ if name != "__version__"]
        names.sort(key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
        yield module, names


def page():
    """The reference."""
    out, stubs = [INTRODUCTION.strip()], stub_signatures()
    for module, names in public():
        out.append(f"## `{module.__name__}`")
        if module is not fd_postproc:
            text = re.sub(r"^([^\n]+)\n-+\n", r"*\1*\n\n", documentation(module), flags=re.M)
            out.append(markdown(text))
        for name in names:
            thing = getattr(module, name)
            if is_alias(module, name):
                out.append(f"### `{name}`\n\nAs `fp.{name}`.")
                continue
            out += described(name, thing, module, stubs)
    return "\n\n".join(part for part in out if part) + "\n"


def is_alias(module, name):
    return module is not fd_postproc and getattr(fd_postproc, name, None) is getattr(module, name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/generate_api.py FILE")
    Path(sys.argv[1]).write_text(page())
