"""The tables of the paper, made by one command on any data: `starfc bench`.

    Part (features, labels, kNN graph) -> jobs, each a process with limits -> rows -> markdown, csv, json, picture

`parts.py` finds the files, `job.py` is what a process does, `tune.py` chooses settings on training people, `limits.py`
watches a process, `run.py` decides which jobs there are and skips those that are done, `tables.py` and `plots.py` write
what came out, `paper.py` holds the published figures. `ablations.py` is apart: one method, part by part.
"""
