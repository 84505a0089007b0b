"""C interface of the core, read from its headers: structures, enumerators and functions keep their C names.

`structs.core_engine` is a `ctypes.Structure`, `enums.OK` is a number, and `declare` sets the types of a library's
functions. Every pointer is an address (`ctypes.c_void_p`).
"""

import ctypes
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HEADERS = ("core.h", "step_times.h")
BLOCK = re.compile(r"(typedef struct|enum) \{(.*?)\}\s*(\w*);", re.DOTALL)
CALLBACK = re.compile(r"(\w+) \(\*(\w+)\)\((.*)\)", re.DOTALL)
FIELD = re.compile(r"([* ]*)(\w+)(?:\[(\w+)\])?")
FUNCTION = re.compile(r"^([\w* ]+?)(\w+)\(([^()]*)\);", re.MULTILINE)

enums, structs = SimpleNamespace(), SimpleNamespace()
_kinds: dict[str, Any] = {
    "void": None,
    "int": ctypes.c_int,
    "i64": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "u128": ctypes.c_uint64 * 2,  # the low half first
    "double": ctypes.c_double,
}
_functions: list[tuple[str, Any, list[Any]]] = []


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Set the types of all functions of a loaded library and return the library."""
    for name, result, parameters in _functions:
        function = getattr(library, name)
        function.restype, function.argtypes = result, parameters
    return library


def _ctype(declaration: str) -> Any:
    """Return the ctypes type of a C result or parameter declaration, with or without the parameter's name."""
    if "*" in declaration:
        return ctypes.c_char_p if "char" in declaration else ctypes.c_void_p
    return _kinds[declaration.split()[0]]


def _parameter_ctypes(declarations: str) -> list[Any]:
    return [_ctype(declaration) for declaration in declarations.split(",")]


def _fields(declaration: str) -> list[tuple[str, Any]]:
    """Return (name, type) of the fields in a declaration, such as `i64 a, b`, `core_tier d[2]` or a callback."""
    if callback := CALLBACK.fullmatch(declaration):
        result, name, parameters = callback.groups()
        return [(name, ctypes.CFUNCTYPE(_kinds[result], *_parameter_ctypes(parameters)))]
    kind, declarators = declaration.split(maxsplit=1)
    fields = []
    for declarator in declarators.split(","):
        declared = FIELD.fullmatch(declarator.strip())
        assert declared, declaration
        stars, name, length = declared.groups()
        field = ctypes.c_void_p if "*" in stars else _kinds[kind]
        fields.append((name, field * int(getattr(enums, length, length)) if length else field))
    return fields


def _read_header(text: str) -> None:
    text = re.sub(r"/\*.*?\*/|^#.*?$|\bconst\b", "", text, flags=re.DOTALL | re.MULTILINE)
    for block, body, name in BLOCK.findall(text):
        if block == "enum":
            number = -1
            for enumerator in body.split(","):
                key, _, value = enumerator.partition("=")
                number = int(value) if value else number + 1
                setattr(enums, key.strip(), number)
        else:
            declared = [" ".join(line.split()) for line in body.split(";") if line.strip()]
            fields = [field for line in declared for field in _fields(line)]
            _kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
            setattr(structs, name, _kinds[name])
    for result, name, parameters in FUNCTION.findall(BLOCK.sub("", text)):
        _functions.append((name, _ctype(result), _parameter_ctypes(parameters)))


for _header in HEADERS:
    _read_header(Path(__file__).with_name(_header).read_text(encoding="utf-8"))
