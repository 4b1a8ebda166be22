"""Edits of syntax trees, by names only: each changes what it finds in a module, and says if it did."""

import ast

LOG_METHODS = ("info", "debug", "warning", "error")
TIMED = """\
def _timed(function):
    import functools
    @functools.wraps(function)
    def run(*arguments, **named):
        return function(*arguments, **named)
    return run
"""


def code(text):
    return ast.parse(text).body


def expression(text):
    return ast.parse(text, mode="eval").body


def name_of(node):
    """The last part of a dotted name, or an empty text."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


class _Replacing(ast.NodeTransformer):
    def __init__(self, is_wanted, make):
        self.is_wanted, self.make, self.found = is_wanted, make, False

    def visit(self, node):
        self.generic_visit(node)
        if not self.is_wanted(node):
            return node
        self.found = True
        return self.make(node)


def replaced(is_wanted, make, helper=""):
    """An edit: another node, or several, for each that is wanted; the module gets a helper first."""

    def edit(tree):
        one = _Replacing(is_wanted, make)
        one.visit(tree)
        if one.found:
            imports = [
                i for i, line in enumerate(tree.body) if isinstance(line, (ast.Import, ast.ImportFrom))
            ]
            place = max(imports, default=-1) + 1
            tree.body[place:place] = code(helper)
        return one.found

    return edit


def changed(is_wanted, change, helper=""):
    """An edit: each node that is wanted is changed in place."""

    def make(node):
        change(node)
        return node

    return replaced(is_wanted, make, helper)


def is_function(*names):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return lambda node: isinstance(node, kinds) and node.name in names


def is_class(name):
    return lambda node: isinstance(node, ast.ClassDef) and node.name == name


def renamed(old, new):
    """A name, wherever it is one: of an attribute, a function, an argument, a keyword, a text."""
    names = ("attr", "id", "arg", "name", "value")

    def fields(node):
        return [name for name in names if getattr(node, name, None) == old]

    return changed(fields, lambda node: [setattr(node, name, new) for name in fields(node)])


def begins_with(names, text):
    """Statements of ours before a function's own."""

    def change(one):
        first = 1 if ast.get_docstring(one) else 0
        one.body[first:first] = code(text)

    return changed(is_function(*names), change)


def in_class(name, text):
    """Statements of ours at the end of a class."""
    return changed(is_class(name), lambda one: one.body.extend(code(text)))


def parameter_added(names, argument):
    """A parameter without a default."""
    return changed(is_function(*names), lambda one: one.args.args.append(ast.arg(argument)))


def decorated(name):
    """A decorator around a function, defined in the module."""
    return changed(is_function(name), lambda one: one.decorator_list.insert(0, ast.Name("_timed")), TIMED)


def base_in_between(name):
    """A class becomes its own base's subclass: ``class X(_BaseX)`` where _BaseX has all that X had."""

    def make(one):
        renamed(name, f"_Base{name}")(one)
        return [one, *code(f"class {name}(_Base{name}):\n    pass")]

    return replaced(is_class(name), make)


def assigned(name, text):
    """What is assigned to an attribute or a constant; ``OLD`` is what it was."""

    def is_wanted(node):
        return isinstance(node, ast.Assign) and name in map(name_of, node.targets)

    def change(node):
        node.value = expression(text.replace("OLD", f"({ast.unparse(node.value)})"))

    return changed(is_wanted, change)


def log_lines(name):
    """Every log line of a function has another text."""

    def is_log_line(node):
        return isinstance(node, ast.Call) and name_of(node.func) in LOG_METHODS

    def change(function):
        for call in filter(is_log_line, ast.walk(function)):
            call.args, call.keywords = [ast.Constant("changed: a step")], []

    return changed(is_function(name), change)


# ---- The double's recording of FastDeploy's classes, which a source tree has in its text -----------------


def shape_renamed(old, new):
    """A name in the recording."""

    def edit(told):
        if isinstance(told, dict):
            return {edit(key): edit(value) for key, value in told.items()}
        if isinstance(told, list):
            return [edit(one) for one in told]
        return new if told == old else told

    return edit


def shape_field(cls, name, default, shown):
    """A field more at the end, with its key in to_dict."""

    def edit(told):
        one = told["classes"][cls]
        one["parameters"].append([name, default])
        one["attributes"].append([name, default])
        if one.get("fields"):
            one["fields"].append(name)
        unconditional = [each for each in one["to_dict"] if len(each) == 3]
        one["to_dict"].insert(len(unconditional), [name, name, *shown.split("|")])
        return told

    return edit


def shape_default(cls, name, default):
    def edit(told):
        for kind in ("parameters", "attributes"):
            for each in told["classes"][cls][kind]:
                if each[0] == name:
                    each[1:] = [default]
        return told

    return edit


def shape_key(cls, key, *entry):
    """A key of to_dict that is another, or gone (no entry)."""

    def edit(told):
        shown = told["classes"][cls]["to_dict"]
        put = [list(entry)] if entry else []
        told["classes"][cls]["to_dict"] = [new for one in shown for new in (put if one[0] == key else [one])]
        return told

    return edit


def shape_member(enum, name, value):
    def edit(told):
        told["enums"].setdefault(enum, []).append([name, value])
        return told

    return edit
