"""Pure decisions: what to do, never doing it."""
