"""`python -m capacity` is the `capacity` command."""

from capacity.cli.main import main

main()
