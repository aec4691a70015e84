"""Frozen values that every layer shares. No input or output happens here."""
