"""Formats as pure functions on bytes and JSON. Neither files nor event loops are known here."""
