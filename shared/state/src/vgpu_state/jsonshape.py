"""Typed access to decoded JSON: a field of the right type, or a sentence naming the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from vgpu_state.errors import VgpuError

T = TypeVar("T")


class ShapeError(VgpuError):
    """Raised when a JSON document lacks a field or holds another type there."""


def text(doc: Mapping[str, Any], field: str) -> str:
    return _typed(doc, field, str, "a string")


def whole(doc: Mapping[str, Any], field: str) -> int:
    """A non-negative integer (JSON true is none)."""
    value = _typed(doc, field, int, "a whole number")
    if isinstance(value, bool) or value < 0:
        raise ShapeError(f"field {field} is {value!r}; expected a whole number")
    return value


def flag(doc: Mapping[str, Any], field: str) -> bool:
    return _typed(doc, field, bool, "true or false")


def mapping(doc: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    return _typed(doc, field, dict, "an object")


def texts(doc: Mapping[str, Any], field: str) -> list[str]:
    items = _typed(doc, field, list, "a list")
    if not all(isinstance(item, str) for item in items):
        raise ShapeError(f"field {field} holds something that is no string")
    return list(items)


def mappings(doc: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    items = _typed(doc, field, list, "a list")
    if not all(isinstance(item, dict) for item in items):
        raise ShapeError(f"field {field} holds something that is no object")
    return list(items)


def _typed(doc: Mapping[str, Any], field: str, kind: type[T], expected: str) -> T:
    if field not in doc:
        raise ShapeError(f"field {field} is missing")
    value = doc[field]
    if not isinstance(value, kind):
        raise ShapeError(f"field {field} is of type {type(value).__name__}; expected {expected}")
    return value
