"""The commands of `starfc`, one file each: a thin view of one library call. `cli.py` finds them by name."""
