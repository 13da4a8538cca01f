"""`python -m cotune.cli`: the command line, where its script is not on the path."""

from cotune.cli.main import main

main()
