"""`python -m cotune.cli`: the command line, where its script is not on the path."""

from cotune.cli.commands import main

main()
