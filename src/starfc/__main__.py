"""The command line as `python -m starfc`, for where the script is not on the path."""

from .cli import main

main()
