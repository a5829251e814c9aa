"""Read, write, check and resume files: every file is whole or absent."""
