"""Interpreter of the statements in which engines compute defaults; nothing else of a release's source runs."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

BUILTINS: dict[str, Any] = {
    **{
        each.__name__: each for each in (max, min, round, len, int, float, list, range, sorted, getattr, bool)
    },
    "callable": callable,
}
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class Interpreter:
    """Calls functions of a syntax tree with `scope` as their globals; imports and assertions are skipped.

    Raises KeyError for a statement, an expression or a name that it does not know.
    """

    def __init__(self, functions: Iterable[ast.FunctionDef], scope: Mapping[str, Any]) -> None:
        self.functions = {node.name: node for node in functions}
        self.scope = {**BUILTINS, **scope}

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Return what the function returns, None without a return statement."""
        node = self.functions[name]
        parameters = [parameter.arg for parameter in node.args.args]
        local = dict(zip(parameters, arguments, strict=False)) | named
        try:
            self._run(node.body, local)
        except _Return as answer:
            return answer.value
        return None

    def _run(self, body: list[ast.stmt], local: dict[str, Any]) -> None:
        for line in body:
            match line:
                case ast.If():
                    self._run(line.body if self._value(line.test, local) else line.orelse, local)
                case ast.Assign(targets=[target]):
                    self._assign(target, self._value(line.value, local), local)
                case ast.AugAssign():
                    old = self._value(ast.parse(ast.unparse(line.target), mode="eval").body, local)
                    new = OPERATORS[type(line.op)](old, self._value(line.value, local))
                    self._assign(line.target, new, local)
                case ast.Return():
                    raise _Return(None if line.value is None else self._value(line.value, local))
                case ast.Expr():
                    self._value(line.value, local)
                case ast.Import() | ast.ImportFrom() | ast.Assert() | ast.Pass():
                    pass
                case _:
                    raise KeyError(ast.unparse(line).splitlines()[0])

    def _assign(self, target: ast.expr, value: Any, local: dict[str, Any]) -> None:
        match target:
            case ast.Name():
                local[target.id] = value
            case ast.Attribute():
                setattr(self._value(target.value, local), target.attr, value)
            case _:
                raise KeyError(ast.unparse(target))

    def _value(self, node: ast.expr, local: dict[str, Any]) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.JoinedStr():
                return ""  # only texts of the log
            case ast.Name():
                return self._named(node.id, local)
            case ast.Attribute():
                return self._attribute(self._value(node.value, local), node.attr)
            case ast.Tuple() | ast.List():
                return [self._value(each, local) for each in node.elts]
            case ast.BinOp():
                return OPERATORS[type(node.op)](self._value(node.left, local), self._value(node.right, local))
            case ast.UnaryOp(op=ast.Not()):
                return not self._value(node.operand, local)
            case ast.BoolOp():
                return self._any_or_all(node, local)
            case ast.IfExp():
                return self._value(node.body if self._value(node.test, local) else node.orelse, local)
            case ast.Compare(ops=[compared], comparators=[other]):
                return OPERATORS[type(compared)](self._value(node.left, local), self._value(other, local))
            case ast.ListComp(generators=[loop]) if isinstance(loop.target, ast.Name):
                found = []
                for each in self._value(loop.iter, local):
                    inner = local | {loop.target.id: each}
                    if all(self._value(test, inner) for test in loop.ifs):
                        found.append(self._value(node.elt, inner))
                return found
            case ast.Call():
                arguments = [self._value(each, local) for each in node.args]
                named = {str(each.arg): self._value(each.value, local) for each in node.keywords}
                return self._value(node.func, local)(*arguments, **named)
        raise KeyError(ast.unparse(node))

    def _named(self, name: str, local: Mapping[str, Any]) -> Any:
        if name in local:
            return local[name]
        if name in self.functions:
            return lambda *arguments, **named: self.call(name, *arguments, **named)
        return self.scope[name]

    def _attribute(self, owner: Any, name: str) -> Any:
        """Return an attribute; methods are functions of the source whose first parameter is the object."""
        if name in self.functions and not hasattr(owner, name):
            return lambda *arguments, **named: self.call(name, owner, *arguments, **named)
        if name.startswith("__") or not hasattr(owner, name):
            raise KeyError(name)
        return getattr(owner, name)

    def _any_or_all(self, node: ast.BoolOp, local: dict[str, Any]) -> Any:
        value: Any = None
        for each in node.values:
            value = self._value(each, local)
            if bool(value) is isinstance(node.op, ast.Or):
                break
        return value
