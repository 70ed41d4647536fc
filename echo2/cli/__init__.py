"""The command line. `main.main` is the entry point; each command is a file of its own."""
