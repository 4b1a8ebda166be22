"""Edits of syntax trees, by names only: each changes what it finds in a module, and says if it did."""

import ast

CLASS = "TokenProcessor"
LOG_METHODS = ("info", "debug", "warning", "error")


def renamed(old, new):
    """A name, wherever it is one: of an attribute, a function, an argument, a keyword, a text."""

    def edit(tree):
        found = False
        for node in ast.walk(tree):
            for name, value in ast.iter_fields(node):
                if value == old and name in ("attr", "id", "arg", "name", "value"):
                    setattr(node, name, new)
                    found = True
        return found

    return edit


def functions(tree, *names):
    """The functions of these names, wherever in a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and node.name in names]


def nodes_of(tree, names):
    """All nodes in the functions of these names."""
    return [node for one in functions(tree, *names) for node in ast.walk(one)]


def instead(text, old):
    """An expression of ours for another one; ``OLD`` in it is the other one."""
    return ast.parse(text.replace("OLD", f"({ast.unparse(old)})"), mode="eval").body


def classes(tree, *names):
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in names]


def code(text):
    return ast.parse(text).body


def begins_with(names, text):
    """Statements of ours before a function's own."""

    def edit(tree):
        for one in functions(tree, *names):
            first = 1 if ast.get_docstring(one) else 0
            one.body[first:first] = code(text)
        return bool(functions(tree, *names))

    return edit


def in_class(names, text, at_end=True):
    """Statements of ours in the body of some classes."""

    def edit(tree):
        found = classes(tree, *names)
        for one in found:
            place = len(one.body) if at_end else 0
            one.body[place:place] = code(text)
        return bool(found)

    return edit


def parameter_added(names, argument, default):
    """A parameter, with a default or without one; calls by attribute give it, if it has none."""

    def edit(tree):
        found = functions(tree, *names)
        for one in found:
            given = ast.arg(argument)
            if default is None:
                one.args.args.insert(2 if len(one.args.args) > 1 else 1, given)
            else:
                one.args.kwonlyargs.append(given)
                one.args.kw_defaults.append(ast.parse(default, mode="eval").body)
        if default is not None:
            return bool(found)
        for call in ast.walk(tree):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in names
            ):
                call.args.insert(1 if call.args else 0, ast.Constant(None))
                found.append(call)
        return bool(found)

    return edit


def moved_to_a_helper(names, how="method"):
    """All of a function into another one that it calls: a method, a function of the module."""

    def edit(tree):
        found = False
        holders = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef))]
        for holder in holders:
            for one in [
                node for node in holder.body if isinstance(node, ast.FunctionDef) and node.name in names
            ]:
                if _uses_super(one) or not isinstance(holder, ast.ClassDef):
                    continue
                inner = ast.parse(ast.unparse(one)).body[0]
                inner.name, inner.decorator_list = f"_inner_{one.name}", []
                arguments = ", ".join(_arguments(one))
                if how == "method":
                    holder.body.append(inner)
                    one.body = code(f"return self.{inner.name}({arguments})")
                else:
                    tree.body.insert(_after_imports(tree), inner)
                    one.body = code(f"return {inner.name}(self{', ' if arguments else ''}{arguments})")
                found = True
        return found

    return edit


def _uses_super(function):
    return any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(function))


def _arguments(function):
    names = [one.arg for one in function.args.args[1:]]
    return names + [f"{one.arg}={one.arg}" for one in function.args.kwonlyargs]


def _after_imports(tree):
    return max(
        [i + 1 for i, one in enumerate(tree.body) if isinstance(one, (ast.Import, ast.ImportFrom))], default=0
    )


def wrapped_calls(method, helper="_told"):
    """Each call ``x.method(...)`` through a function of the module."""

    def edit(tree):
        found = False
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
            if isinstance(call.func, ast.Attribute) and call.func.attr == method:
                call.args.insert(0, call.func)
                call.func = ast.Name(helper)
                found = True
        if found:
            tree.body[_after_imports(tree) : _after_imports(tree)] = code(
                f"def {helper}(method, *arguments, **named):\n    return method(*arguments, **named)"
            )
        return found

    return edit


def decorated(names, with_wraps=True):
    """A decorator around a function, defined in the module."""

    def edit(tree):
        found = functions(tree, *names)
        for one in found:
            one.decorator_list.insert(0, ast.Name("_timed"))
        if found:
            wraps = "    import functools\n" if with_wraps else ""
            line = "    @functools.wraps(function)\n" if with_wraps else ""
            text = (
                f"def _timed(function):\n{wraps}{line}    def run(*arguments, **named):\n"
                "        return function(*arguments, **named)\n    return run"
            )
            tree.body[_after_imports(tree) : _after_imports(tree)] = code(text)
        return bool(found)

    return edit


def base_in_between(name):
    """A class becomes its own base's subclass: ``class X(_Base)`` where _Base has all that X had."""

    def edit(tree):
        for holder in [node for node in ast.walk(tree) if isinstance(node, ast.Module)]:
            for i, one in enumerate(holder.body):
                if isinstance(one, ast.ClassDef) and one.name == name:
                    one.name = f"_Base{name}"
                    for node in ast.walk(one):
                        if isinstance(node, ast.Name) and node.id == name:
                            node.id = one.name
                    holder.body.insert(i + 1, code(f"class {name}(_Base{name}):\n    pass")[0])
                    return True
        return False

    return edit


def ends_at(attribute, also):
    """The end condition ``token in task.ATTRIBUTE`` gets another one: ``or token in ALSO``."""

    def edit(tree):
        found = []
        for node in ast.walk(tree):
            for name, value in ast.iter_fields(node):
                items = value if isinstance(value, list) else [value]
                for i, one in enumerate(items):
                    if _is_member_of(one, attribute):
                        other = ast.Compare(
                            one.left, [ast.In()], [_expression(also, one.comparators[0].value)]
                        )
                        new = ast.BoolOp(ast.Or(), [one, other])
                        found.append((node, name, i, isinstance(value, list), new))
        for node, name, i, in_list, new in found:
            if in_list:
                getattr(node, name)[i] = new
            else:
                setattr(node, name, new)
        return bool(found)

    return edit


def _expression(text, task):
    made = ast.parse(text, mode="eval").body
    for node in ast.walk(made):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.Name) and value.id == "TASK":
                setattr(node, name, task)
            elif isinstance(value, list):
                setattr(
                    node,
                    name,
                    [task if isinstance(one, ast.Name) and one.id == "TASK" else one for one in value],
                )
    return made


def _is_member_of(node, attribute):
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.In):
        return False
    return isinstance(node.comparators[0], ast.Attribute) and node.comparators[0].attr == attribute


def keyword_becomes(call, keyword, text):
    """The value of a keyword in calls of a class; ``OLD`` in `text` is what it was."""

    def edit(tree):
        found = False
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _last_name(node.func) == call:
                for one in node.keywords:
                    if one.arg == keyword:
                        one.value = ast.parse(text.replace("OLD", ast.unparse(one.value)), mode="eval").body
                        found = True
        return found

    return edit


def keyword_added(call, keyword, text):
    """A keyword more in calls of a class."""

    def edit(tree):
        found = False
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _last_name(node.func) == call and node.keywords:
                node.keywords.append(ast.keyword(keyword, ast.parse(text, mode="eval").body))
                found = True
        return found

    return edit


def _last_name(node):
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def assigned(attribute, text):
    """What is assigned to an attribute; ``OLD`` is what it was."""

    def edit(tree):
        found = False
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and any(_last_name(one) == attribute for one in node.targets):
                node.value = instead(text, node.value)
                found = True
        return found

    return edit


def log_lines(names):
    """Every log line of some functions begins with another word, and there is one more."""

    def edit(tree):
        found = False
        for node in nodes_of(tree, names):
            if isinstance(node, ast.Call) and _last_name(node.func) in LOG_METHODS:
                node.args = [ast.Constant("changed: a step")]
                node.keywords, found = [], True
        return found

    return edit


def constant(name, text):
    """What a module's constant is; ``OLD`` is what it was."""

    def edit(tree):
        found = False
        for node in tree.body:
            if isinstance(node, ast.Assign) and any(_last_name(one) == name for one in node.targets):
                node.value = instead(text, node.value)
                found = True
        return found

    return edit


def made_async(names):
    """A method becomes a coroutine, which its callers run to its end."""

    def edit(tree):
        found = False
        for node in ast.walk(tree):
            for _, value in ast.iter_fields(node):
                for i, one in enumerate(value if isinstance(value, list) else []):
                    if isinstance(one, ast.FunctionDef) and one.name in names:
                        made = ast.parse(ast.unparse(one)).body[0]
                        value[i] = ast.AsyncFunctionDef(
                            **{each: getattr(made, each, None) for each in ast.AsyncFunctionDef._fields}
                        )
                        found = True
                    elif _is_call_of(one, names):
                        text = f"__import__('asyncio').run({ast.unparse(one.value)})"
                        one.value, found = ast.parse(text, mode="eval").body, True
        return found

    return edit


def _is_call_of(node, names):
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call and _last_name(node.value.func) in names


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


def shape_field(cls, name, default, shown="itself", at_end=True):
    """A field more, with its key in to_dict unless `shown` is empty."""

    def edit(told):
        one = told["classes"][cls]
        place = (
            len(one["parameters"]) if at_end else len([each for each in one["parameters"] if len(each) == 1])
        )
        one["parameters"].insert(place, [name, default])
        one["attributes"].insert(min(place, len(one["attributes"])), [name, default])
        if one.get("fields"):
            one["fields"].insert(place, name)
        if shown and one.get("to_dict"):
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
        told["classes"][cls]["to_dict"] = [
            new
            for one in shown
            for new in ([list(entry)] if entry and one[0] == key else [] if one[0] == key else [one])
        ]
        return told

    return edit


def shape_member(enum, name, value):
    def edit(told):
        told["enums"].setdefault(enum, []).append([name, value])
        return told

    return edit
