"""The command ``streamkit``: demo, matrix, doctor, audit and races of a program."""
