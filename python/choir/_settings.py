# SPDX-License-Identifier: Apache-2.0
"""Structs of settings by the library's field tables.

An op's attributes, the settings of an optimizer, a strategy or the loader: the
C library describes each struct by a table (name, kind, default, range, doc).
Everything here reads it, so a new setting in C is one in Python.
"""

from __future__ import annotations

import ctypes
import struct

from choir._calls import check, lib
from choir._lib import FieldKind

_FORMATS = {
    FieldKind.BOOL: "?",
    FieldKind.INT: "q",
    FieldKind.FLOAT: "d",
    FieldKind.ENUM: "i",
}


class _Field:
    """One row of a table."""

    def __init__(self, row) -> None:
        self.name: str = row.name.decode()
        self.kind: int = row.kind
        self.offset: int = row.offset
        self.count: int = row.count
        self.doc: str = row.doc.decode() if row.doc else ""
        self.minimum: float = row.minimum
        self.maximum: float = row.maximum
        self.choices: list[str] = []
        if self.kind == FieldKind.ENUM:
            while row.enum_names[len(self.choices)]:
                self.choices.append(row.enum_names[len(self.choices)].decode())
        self.default = self._default(row)

    def _default(self, row):
        if self.kind == FieldKind.STRING:
            return row.default_text.decode() if row.default_text else None
        if self.kind == FieldKind.ENUM:
            return self.choices[int(row.default_value)]
        value = row.default_value
        one = bool(value) if self.kind == FieldKind.BOOL else value
        if self.kind == FieldKind.INT:
            one = int(value)
        return one if self.count == 1 else (one,) * self.count

    def _number(self, owner: str, value):
        if self.kind == FieldKind.ENUM:
            if isinstance(value, str):
                if value.lower() not in self.choices:
                    raise ValueError(
                        f"{owner}: {self.name} is {value!r}; one of "
                        f"{', '.join(self.choices)} is needed"
                    )
                return self.choices.index(value.lower())
            return int(value)
        try:
            if self.kind == FieldKind.BOOL:
                return bool(value)
            if self.kind == FieldKind.FLOAT:
                return float(value)
            if int(value) != value:
                raise TypeError
            return int(value)
        except (TypeError, ValueError):
            needed = {
                FieldKind.BOOL: "a truth value",
                FieldKind.INT: "an integer",
                FieldKind.FLOAT: "a number",
            }
            raise TypeError(
                f"{owner}: {self.name} is {value!r}; {needed[self.kind]} is needed"
            ) from None

    def pack(self, owner: str, buffer, keep: list, value) -> None:
        """Writes a value into the struct; `keep` holds texts it points to."""
        if self.kind == FieldKind.STRING:
            text = (
                None if value is None else ctypes.c_char_p(str(value).encode())
            )
            keep.append(text)
            address = ctypes.cast(text, ctypes.c_void_p).value if text else 0
            struct.pack_into("P", buffer, self.offset, address or 0)
            return
        if self.count == 1:
            values = [value]
        elif isinstance(value, (list, tuple)):
            values = list(value)
        else:
            values = [value] * self.count
        if len(values) > self.count:
            raise ValueError(
                f"{owner}: {self.name} has {len(values)} values; at most "
                f"{self.count} are possible"
            )
        numbers = [self._number(owner, one) for one in values]
        try:
            struct.pack_into(
                f"{len(numbers)}{_FORMATS[self.kind]}",
                buffer,
                self.offset,
                *numbers,
            )
        except struct.error:
            raise OverflowError(
                f"{owner}: {self.name} is {value!r}, which is too large"
            ) from None


class Table:
    """The table of one struct."""

    def __init__(self, pointer) -> None:
        self.pointer = pointer
        definition = pointer.contents
        self.name: str = definition.name.decode()
        self.doc: str = definition.doc.decode() if definition.doc else ""
        self.bytes: int = definition.bytes
        self.fields = {}
        for i in range(definition.field_count):
            field = _Field(definition.fields[i])
            self.fields[field.name] = field

    def make(
        self, owner: str | None = None, check_ranges: bool = True, **values
    ):
        """A struct with the given values and defaults for the rest.

        Raises TypeError for an unknown name (the known ones are listed) and
        ValueError for a value out of range.
        """
        buffer = ctypes.create_string_buffer(max(self.bytes, 1))
        lib.struct_init(self.pointer, buffer)
        keep: list = []
        for name, value in values.items():
            field = self.fields.get(name)
            if field is None:
                known = ", ".join(self.fields) or "none"
                raise TypeError(
                    f"{owner or self.name} has no setting {name!r}; it has: {known}"
                )
            try:
                field.pack(owner or self.name, buffer, keep, value)
            except OverflowError as error:
                if check_ranges:
                    raise ValueError(str(error)) from None
                raise
        if check_ranges:
            check(lib.struct_check(self.pointer, buffer))
        buffer.keep = keep  # lives as long as the struct
        return buffer

    def describe(self) -> str:
        """A line for each setting, for docstrings."""
        return "\n".join(
            f"    {field.name} = {field.default}: {field.doc}"
            for field in self.fields.values()
        )
