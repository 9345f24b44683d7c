"""`python -m hanse.cli`."""

from hanse.cli import main

main()
