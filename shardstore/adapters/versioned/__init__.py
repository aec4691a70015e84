"""Versioned stores for programs: repositories, their sessions, and what leads into and out of them. Begin with ``repository.py``."""
