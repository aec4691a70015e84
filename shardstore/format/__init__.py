"""Formats as pure functions on bytes and JSON, without files and event loops."""
