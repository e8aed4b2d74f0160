"""What the demo asserts and shows: a mismatch ends it with what was expected and what was seen."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


class Mismatch(Exception):
    """Raised when what was seen is not what was expected."""

    def __init__(self, what: str, *, expected: object, seen: object) -> None:
        super().__init__(f"{what}: expected {expected}, seen {seen}")


class Report:
    """Prints the story as it goes and keeps it for demo.json."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.document: dict[str, Any] = {"steps": [], "containers": []}

    def chapter(self, title: str) -> None:
        self._say(f"\n{title}")
        self.document["steps"].append({"title": title, "at_s": round(time.monotonic() - self._began, 2), "facts": []})

    def fact(self, text: str, **facts: object) -> None:
        """One line of the story; `facts` go to demo.json only."""
        self._say(f"  {text}")
        self.document["steps"][-1]["facts"].append({"text": text, **facts})

    def show(self, text: str) -> None:
        self._say(text)

    def container(self, **facts: object) -> None:
        self.document["containers"].append(facts)

    def check(self, what: str, *, expected: object, seen: object) -> None:
        """Returns when both are equal.

        Raises:
            Mismatch: they are not.
        """
        if expected != seen:
            raise Mismatch(what, expected=expected, seen=seen)

    def check_that(self, what: str, holds: bool, *, seen: object) -> None:
        """Returns when the statement holds.

        Raises:
            Mismatch: it does not.
        """
        if not holds:
            raise Mismatch(what, expected="so", seen=seen)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.document, indent=2) + "\n")

    def _say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
