"""Training of a space: labelled faces become a linear map after which pictures of one person are nearer (`space.py`).

In: Features, labels, an index of the people. Out: Space. A face is compared with some thousand others at once; each
picture of its own person is to be nearer than the strangers among them, the nearest of which weigh most:

    mean over faces i and pictures j of the same person of log(1 + exp(log sum_m exp(s_im / T) - s_ij / T)),

s the cosines after the map, m all strangers. The map starts as the identity, and stops after few small steps: that is
what keeps it from learning the people themselves. What a step costs depends on the faces compared, not on how many
there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .people import PersonIndex, draw_people
from .progress import Progress, silent
from .relational_training import import_torch
from .space import Space

BITS = 1  # counted up when a change here changes what is learned: kept spaces are learned anew
_STEPS = 150
_COMPARED = 8192  # faces that a face is compared with
_TURN = 25  # steps after which these are others, where there are more
_FACES = 512  # compared in a step
_PICTURES = 8  # of the same person that a face is drawn to, at most
_TEMPERATURE = 0.07
_LEARNING_RATE = 6e-4


def learn_space(
    features: Features,
    labels: NDArray[np.int64],
    index: PersonIndex,
    *,
    steps: int | None = None,
    seed: int | list[int] = 0,
    progress: Progress = silent,
) -> Space:
    """Learn a space from the people of an index.

    Parameters
    ----------
    features : Features
        (n, d); some thousand rows are read at a time.
    labels : int64 (n,)
    index : PersonIndex
        Whom to learn from.
    steps : int, optional
        Of the optimiser, fewer than it takes by itself.
    seed : int or list of int
    progress : callable
        Called as ``progress("space", done, total)``.

    Returns
    -------
    Space
        Where nobody has two faces, one that changes nothing.

    Examples
    --------
    >>> from starfc.people import index_people
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(200, people=40, dim=16)
    >>> features = Features(faces)
    >>> learn_space(features, people, index_people(features, people), steps=2).change.shape
    (16, 16)
    """
    torch = import_torch()
    n_steps, dim, rng = min(steps or _STEPS, _STEPS), features.dim, np.random.default_rng(seed)
    change, shift = (torch.zeros(shape, requires_grad=True) for shape in ((dim, dim), (dim,)))
    optimizer = torch.optim.AdamW([change, shift], _LEARNING_RATE, weight_decay=0.0)
    # One cycle needs a step up and one down.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=max(4, n_steps))
    draw_again = len(index.rows) > _COMPARED
    for step in range(n_steps):
        progress("space", step, n_steps)
        if step == 0 or (draw_again and step % _TURN == 0):
            taken = draw_people(index, min(_COMPARED, len(index.rows)), rng)
            rows, people = torch.from_numpy(features.take(taken)), labels[taken]
            _, person, counts = np.unique(people, return_inverse=True, return_counts=True)
            several = np.flatnonzero(counts[person] > 1)
        if len(several) == 0:
            continue
        faces = rng.choice(several, min(_FACES, len(several)), replace=False)
        mapped = torch.nn.functional.normalize(rows + rows @ change + shift, dim=1)
        loss = _measure_loss(torch, mapped, people, faces, rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    progress("space", n_steps, n_steps)
    return Space(change.detach().numpy(), shift.detach().numpy())


def _measure_loss(
    torch: Any,  # noqa: ANN401
    mapped: Any,  # noqa: ANN401
    people: NDArray[np.int64],
    faces: NDArray[np.int64],
    rng: np.random.Generator,
) -> Any:  # noqa: ANN401
    """Return the loss of some faces among all, each having the same say."""
    same = people[faces][:, None] == people
    cosines = mapped[torch.from_numpy(faces)] @ mapped.T / _TEMPERATURE  # (f, n)
    strangers = cosines.masked_fill(torch.from_numpy(same), -torch.inf).logsumexp(dim=1)
    same[np.arange(len(faces)), faces] = False
    pictures, weights = _draw_pictures(same, rng)
    own = cosines[torch.from_numpy(pictures[:, 0]), torch.from_numpy(pictures[:, 1])]
    losses = torch.nn.functional.softplus(strangers[torch.from_numpy(pictures[:, 0])] - own)
    return (losses * torch.from_numpy(weights)).sum()


def _draw_pictures(same: NDArray[np.bool_], rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw some of the marked columns of each row; return (row, column) pairs, and weights that sum to 1.

    >>> pairs, weights = _draw_pictures(np.array([[True, False, True], [False, True, False]]), np.random.default_rng(0))
    >>> pairs.tolist(), weights.tolist()
    ([[0, 0], [0, 2], [1, 1]], [0.25, 0.25, 0.5])
    """
    order = np.where(same, rng.random(same.shape, dtype=np.float32), np.float32(2))
    n_drawn = min(_PICTURES, same.shape[1])
    columns = np.sort(np.argpartition(order, n_drawn - 1, axis=1)[:, :n_drawn], axis=1)
    is_drawn = np.take_along_axis(same, columns, axis=1)
    rows = np.nonzero(is_drawn)[0]
    weights = 1 / (len(same) * is_drawn.sum(axis=1)[rows])
    return np.column_stack((rows, columns[is_drawn])), weights.astype(np.float32)
