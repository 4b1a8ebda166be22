"""PTX to C, instruction by instruction: what the driver gets, run on the CPU.

Exactly the instructions that the kernel uses; any other is an error, so that nothing is guessed.  What memory
does, and what is checked, is in ``ptx_machine.h``.
"""

import ctypes
import re
import subprocess
from pathlib import Path

from tests.lib.kernel_emulation import ROOT, compiler

PTX = ROOT / "cuda" / "pack.ptx"
HERE = Path(__file__).parent
SPECIAL = {"%tid.x": "t->thread", "%ntid.x": "n_threads", "%ctaid.x": "t->block", "%nctaid.x": "n_blocks"}
SIZES = {"u8": 1, "u32": 4, "s32": 4, "u64": 8}
C_TYPES = {"s16": "int16_t", "s32": "int32_t", "s64": "int64_t", "u32": "uint32_t", "u64": "uint64_t"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGIC = {"and": "&", "or": "|"}


class Unknown(Exception):
    """An instruction or operand that the kernel did not have when this was written."""


def operand(text):
    """A value in C."""
    if match := re.fullmatch(r"%(rd|rs|r|p)(\d+)", text):
        return f"t->{match[1]}[{match[2]}]"
    if text in SPECIAL:
        return f"(uint32_t){SPECIAL[text]}"
    if re.fullmatch(r"-?\d+", text):
        return f"INT64_C({text})" if text != "-9223372036854775808" else "INT64_MIN"
    if re.fullmatch(r"fdk_pack_param_0", text):
        return "PARAM_BASE"
    if text == "shared":
        return "SHARED_BASE"
    raise Unknown(f"operand {text}")


def address(text):
    match = re.fullmatch(r"\[([%\w]+)(?:\+(-?\d+))?\]", text)
    if match is None:
        raise Unknown(f"address {text}")
    return f"((uint64_t){operand(match[1])} + UINT64_C({match[2] or 0}))"


def split(text):
    """Operands, those of a vector in one."""
    return [part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text)]


def binary(name, kind, c):
    """Wrapping arithmetic, and the like."""
    a, b = f"({C_TYPES[kind]}){c[1]}", f"({C_TYPES[kind]}){c[2]}"
    unsigned = C_TYPES["u" + kind[1:]]
    if name in ("add", "sub", "mul.lo"):
        sign = {"add": "+", "sub": "-", "mul.lo": "*"}[name]
        return f"{c[0]} = ({unsigned})(({unsigned}){a} {sign} ({unsigned}){b});"
    sign = {"min": "<", "max": ">"}[name]
    return f"{c[0]} = ({unsigned})({a} {sign} {b} ? {a} : {b});"


def memory(opcode, operands, line):
    """A load or store, of one number or two."""
    parts = opcode.split(".")
    name, kind = parts[0], parts[-1]
    middle = [part for part in parts[1:-1] if part not in ("volatile", "v2")]
    if middle not in (["param"], ["shared"], ["global"]) or kind not in SIZES:
        raise Unknown(opcode)
    space, size = middle[0].upper(), SIZES[kind]
    at, values = (operands[1], operands[0]) if name == "ld" else (operands[0], operands[1])
    registers = [operand(v.strip()) for v in values.strip("{}").split(",")]
    if len(registers) != (2 if "v2" in parts else 1):
        raise Unknown(opcode)
    out = [f"at = {address(at)}; aligned(t, {line}, at, {size * len(registers)});"]
    for k, register in enumerate(registers):
        where = f"t, {line}, {space}, at + {k * size}, {size}"
        if name == "ld":
            signed = "(uint64_t)(int32_t)" if kind == "s32" else ""
            out.append(f"{register} = {signed}load({where});")
        else:
            out.append(f"put({where}, {register});")
    return " ".join(out)


def statement(opcode, operands, line, barriers):
    """One instruction in C."""
    name, _, kind = opcode.rpartition(".")
    if opcode in ("bra", "bra.uni"):
        return f"goto {operands[0].replace('$', 'L')};"
    if opcode == "ret":
        return "return ENDED;"
    if opcode == "bar.sync":
        if operands != ["0"]:
            raise Unknown(f"{opcode} {operands}")
        barriers.append(len(barriers) + 1)
        number = barriers[-1]
        return f"t->pc = {number}; return AT_BARRIER; B{number}:;"
    if opcode.startswith(("ld.", "st.")):
        return memory(opcode, operands, line)
    c = [operand(text) for text in operands]
    if opcode == "mov.pred":
        return f"{c[0]} = {c[1]} != 0;"
    if opcode in ("mov.u32", "mov.u64", "mov.b64", "cvta.to.global.u64", "cvt.u64.u32", "cvt.u32.u64"):
        return f"{c[0]} = {c[1]};"
    if opcode == "cvt.s64.s32":
        return f"{c[0]} = (uint64_t)(int64_t)(int32_t){c[1]};"
    if name in ("add", "sub", "mul.lo", "min", "max") and kind in ("s32", "s64"):
        return binary(name, kind, c)
    if opcode == "mad.lo.s32":
        return f"{c[0]} = (uint32_t){c[1]} * (uint32_t){c[2]} + (uint32_t){c[3]};"
    if opcode == "mul.wide.s32":
        return f"{c[0]} = (uint64_t)((int64_t)(int32_t){c[1]} * (int32_t){c[2]});"
    if opcode == "div.s32":
        return f"{c[0]} = (uint32_t)divide(t, {line}, (int32_t){c[1]}, (int32_t){c[2]});"
    if opcode == "neg.s32":
        return f"{c[0]} = -{c[1]};"
    if name == "shl" and kind in ("b32", "b64"):
        return f"{c[0]} = (uint32_t){c[2]} < {kind[1:]} ? {c[1]} << {c[2]} : 0;"
    if name == "shr" and kind in ("s32", "u32", "u64"):
        most = f"{int(kind[1:]) - 1}"
        beyond = f"(uint32_t){c[2]} > {most} ? {most} : {c[2]}" if kind[0] == "s" else c[2]
        shifted = f"({C_TYPES[kind]}){c[1]} >> ({beyond})"
        return f"{c[0]} = {shifted};" if kind[0] == "s" else (
            f"{c[0]} = (uint32_t){c[2]} > {most} ? 0 : {shifted};")  # fmt: skip
    if name in LOGIC and kind in ("b32", "b64", "pred"):
        return f"{c[0]} = {c[1]} {LOGIC[name]} {c[2]};"
    if opcode == "not.pred":
        return f"{c[0]} = !{c[1]};"
    if opcode == "not.b32":
        return f"{c[0]} = ~{c[1]};"
    if name == "selp" and kind in ("b32", "u32", "b64"):
        return f"{c[0]} = {c[3]} ? {c[1]} : {c[2]};"
    if match := re.fullmatch(r"setp\.(eq|ne|lt|le|gt|ge)", name):
        if kind not in C_TYPES:
            raise Unknown(opcode)
        return f"{c[0]} = ({C_TYPES[kind]}){c[1]} {COMPARISONS[match[1]]} ({C_TYPES[kind]}){c[2]};"
    raise Unknown(opcode)


def translate(ptx):
    """C source of the kernel.

    Raises
    ------
    Unknown
        If there is an instruction that is not known.
    """
    counts = dict(re.findall(r"\.reg \.\w+\s+%(\w+)<(\d+)>", ptx))
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    lines, barriers = [], []
    first = ptx[: ptx.index("{", ptx.index(".entry"))].count("\n") + 1
    for number, text in enumerate(body.splitlines(), first):
        text = text.partition("//")[0].strip()
        if text in ("", "{", "}") or text.startswith(".reg"):
            continue
        if match := re.fullmatch(r"(\$\w+):", text):
            lines.append(f"{match[1].replace('$', 'L')}:;")
            continue
        match = re.fullmatch(r"(?:@(!?)(%p\d+)\s+)?([a-z][\w.]*)\s*(.*?);", text)
        if match is None:
            raise Unknown(text)
        code = statement(match[3], split(match[4]), number, barriers)
        if match[2]:
            if not match[3].startswith("bra"):
                raise Unknown(text)
            code = f"if ({match[1]}{operand(match[2])}) {code}"
        lines.append(code)
    sizes = "".join(f"#define N_{name.upper()} {counts[name]}\n" for name in ("p", "r", "rd", "rs"))
    jumps = "".join(f"case {number}: goto B{number};\n" for number in barriers)
    return "\n".join(
        [
            sizes + '#include "ptx_machine.h"\n#include "ptx_machine.c"',
            "static int run_thread(thread_state *t)\n{\nuint64_t at = 0;\n(void)at;",
            f"switch (t->pc) {{\n{jumps}}}",
            *lines,
            "return ENDED;\n}\n",
        ]
    )


class _Store(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("pc", "block", "thread", "ordinal")],
        ("at", ctypes.c_uint64),
    ]


class Machine:
    """The kernel of some PTX, as a library that `kernel_emulation` can run.

    level : how the compiler optimises it; without, for a few runs, compiling takes a fourth of the time.
    """

    def __init__(self, ptx, folder, level="-O0"):
        source, built = Path(folder) / "kernel.c", Path(folder) / "kernel.so"
        source.write_text(translate(ptx))
        headers = ["-I", HERE, "-I", ROOT]
        flags = ["-std=gnu11", level, "-shared", "-fPIC", "-w"]
        subprocess.run([*compiler(), *flags, *headers, source, "-o", built], check=True)
        self.library = ctypes.CDLL(str(built))
        self.library.ptx_fault.restype = ctypes.c_char_p
        self.library.ptx_stores.restype = ctypes.c_int64

    @property
    def run(self):
        return ctypes.cast(self.library.ptx_run, ctypes.c_void_p)

    def fault(self):
        """str: what was wrong in the last run; empty: nothing."""
        return self.library.ptx_fault().decode()

    def lines(self, offset=0):
        """Stores of 128 bytes, or parts of them, that the last run's warps made into the message.

        offset : bytes from the beginning of a line to that of the message, for a device.
        """
        stores = ctypes.POINTER(_Store)()
        n = self.library.ptx_stores(ctypes.byref(stores))
        turns, lines, first = {}, set(), min((stores[k].at for k in range(n)), default=0)
        for k in range(n):
            store = stores[k]
            who = (store.block, store.thread, store.pc)
            turns[who] = turn = turns.get(who, 0) + 1
            line = (store.at - first + offset) // 128
            lines.add((store.block, store.thread // 32, store.pc, turn, line))
        return len(lines)
