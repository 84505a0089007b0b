"""`python -m capacity` is the `capacity` command."""

from capacity.cli import main

main()
