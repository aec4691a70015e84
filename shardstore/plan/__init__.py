"""Plans: which bytes to read and what to write. Pure functions on frozen values."""
