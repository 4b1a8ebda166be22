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
TOLD = "def _told(method, *arguments, **named):\n    return method(*arguments, **named)"


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


def is_class(*names):
    return lambda node: isinstance(node, ast.ClassDef) and node.name in names


def is_call(*names, kind=(ast.Attribute, ast.Name)):
    return lambda node: (
        isinstance(node, ast.Call) and isinstance(node.func, kind) and name_of(node.func) in names
    )


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


def in_class(names, text):
    """Statements of ours at the end of some classes."""
    return changed(is_class(*names), lambda one: one.body.extend(code(text)))


def parameter_added(names, argument, default):
    """A parameter, with a default or without one; calls by attribute give it, if it has none."""

    def change(one):
        if isinstance(one, ast.Call):
            one.args.insert(1 if one.args else 0, ast.Constant(None))
        elif default is None:
            one.args.args.insert(2 if len(one.args.args) > 1 else 1, ast.arg(argument))
        else:
            one.args.kwonlyargs.append(ast.arg(argument))
            one.args.kw_defaults.append(expression(default))

    is_definition, is_use = is_function(*names), is_call(*names, kind=ast.Attribute)
    return changed(lambda node: is_definition(node) or (default is None and is_use(node)), change)


def moved_to_a_helper(name, how):
    """All of a method into another one that it calls: a method, or a function of the module."""

    def edit(tree):
        wanted, found = is_function(name), False
        for holder in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
            for one in filter(wanted, list(holder.body)):
                if "super()" in ast.unparse(one):
                    continue
                inner = code(ast.unparse(one))[0]
                inner.name, inner.decorator_list, found = f"_inner_{name}", [], True
                given = [each.arg for each in one.args.args[1:]]
                given += [f"{each.arg}={each.arg}" for each in one.args.kwonlyargs]
                (holder if how == "method" else tree).body.append(inner)
                call = "self._inner" if how == "method" else "_inner"
                given = given if how == "method" else ["self", *given]
                one.body = code(f"return {call}_{name}({', '.join(given)})")
        return found

    return edit


def wrapped_calls(method):
    """Each call ``x.method(...)`` through a function of the module."""

    def change(call):
        call.args.insert(0, call.func)
        call.func = ast.Name("_told")

    return changed(is_call(method, kind=ast.Attribute), change, TOLD)


def decorated(name):
    """A decorator around a function, defined in the module."""
    return changed(is_function(name), lambda one: one.decorator_list.insert(0, ast.Name("_timed")), TIMED)


def base_in_between(name):
    """A class becomes its own base's subclass: ``class X(_BaseX)`` where _BaseX has all that X had."""

    def make(one):
        renamed(name, f"_Base{name}")(one)
        return [one, *code(f"class {name}(_Base{name}):\n    pass")]

    return replaced(is_class(name), make)


def ends_at(attribute, also):
    """The end condition ``token in TASK.ATTRIBUTE`` gets another one: ``or token in ALSO``."""

    def is_condition(node):
        is_member = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In)
        return is_member and getattr(node.comparators[0], "attr", "") == attribute

    def make(node):
        other = also.replace("TASK", ast.unparse(node.comparators[0].value))
        return expression(f"({ast.unparse(node)}) or {ast.unparse(node.left)} in {other}")

    return replaced(is_condition, make)


def keyword_becomes(call, keyword, text):
    """The value of a keyword in calls of a class; ``OLD`` in `text` is what it was."""

    def keywords(node):
        return [one for one in node.keywords if one.arg == keyword] if is_call(call)(node) else []

    def change(node):
        for one in keywords(node):
            one.value = expression(text.replace("OLD", ast.unparse(one.value)))

    return changed(keywords, change)


def keyword_added(call, keyword, text):
    """A keyword more in calls of a class."""
    return changed(
        lambda node: is_call(call)(node) and node.keywords,
        lambda node: node.keywords.append(ast.keyword(keyword, expression(text))),
    )


def assigned(name, text):
    """What is assigned to an attribute or a constant; ``OLD`` is what it was."""

    def is_wanted(node):
        return isinstance(node, ast.Assign) and name in map(name_of, node.targets)

    def change(node):
        node.value = expression(text.replace("OLD", f"({ast.unparse(node.value)})"))

    return changed(is_wanted, change)


def log_lines(name):
    """Every log line of a function has another text."""

    def change(call):
        call.args, call.keywords = [ast.Constant("changed: a step")], []

    def edit(tree):
        functions = [node for node in ast.walk(tree) if is_function(name)(node)]
        found = [changed(is_call(*LOG_METHODS), change)(one) for one in functions]
        return any(found)

    return edit


def made_async(name):
    """A method becomes a coroutine, which its callers run to its end."""

    def is_use(node):
        return isinstance(node, ast.Expr) and is_call(name)(node.value)

    def make(node):
        if is_use(node):
            return code(f"__import__('asyncio').run({ast.unparse(node.value)})")
        return code(f"async {ast.unparse(node)}")

    return replaced(
        lambda node: (isinstance(node, ast.FunctionDef) and node.name == name) or is_use(node), make
    )


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
