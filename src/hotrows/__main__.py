"""`python -m hotrows`: the command line."""

from hotrows.cli import main

main()
