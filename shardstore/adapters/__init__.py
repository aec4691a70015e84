"""Faces: thin over one engine, each in the words of the programs that use it."""
