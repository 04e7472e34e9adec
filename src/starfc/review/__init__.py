"""The review page: a local server on which a person looks through a clustering and corrects it.

`collection.py` holds the state and makes every correction (`changes.py`, `grouping.py`); `table.py` knows the figures
of each cluster, `queue.py` what to ask next, `thumbnails.py` what a face looks like; `guard.py` says who may ask,
`server.py` answers; `static/` is the page.
"""
