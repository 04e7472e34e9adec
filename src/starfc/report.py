"""Report: one HTML file that shows a clustering to people who have nothing installed.

In: labels, and as far as they are there features with their scores, pictures and the truth. Out: a file that loads
nothing, readable on a phone and on paper: sizes; confidence and score distributions with tau_1 and tau_2 (the paper's
score figure); a map of the centres; the least cohesive clusters and the pairs that may be one person, with faces; and
with the truth the metrics and the worst errors. What is drawn of a face is its picture, or else an avatar.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import __version__
from .atomic import replacing
from .drawing import draw_histogram, draw_log_dots, draw_map
from .errors import InputError
from .evidence import Evidence
from .features import Features
from .images import ImageList
from .metrics import Evaluation, evaluate
from .portraits import Artist
from .progress import Progress, silent
from .prune import measure_intimacy, parse_edges
from .quality import (
    ClusterPairs,
    Groups,
    Shapes,
    average_by_cluster,
    find_mixed,
    find_pairs,
    find_split,
    group_faces,
    measure_confidence,
    measure_shapes,
)
from .questions import History, make_traits, predict_same, value_questions

_SHOWN_CLUSTERS = 10
_SHOWN_FACES = 9
_MAPPED = 800
_WITHIN, _BETWEEN = "#2a9d8f", "#e76f51"


@dataclass(frozen=True)
class _Subject:
    """Everything the sections draw from; None is what was not given."""

    groups: Groups
    features: Features | None
    evidence: Evidence | None
    shapes: Shapes | None
    confidence: NDArray[np.float32] | None
    pairs: ClusterPairs | None
    truth: NDArray[np.int64] | None
    evaluation: Evaluation | None
    artist: Artist

    @property
    def is_person(self) -> NDArray[np.bool_]:
        """Mark the clusters that are people; a face that was left out is a group of its own and none of them."""
        return self.groups.ids >= 0

    @property
    def is_counted(self) -> NDArray[np.bool_]:
        """Mark the faces that belong to somebody."""
        return self.is_person[self.groups.codes]


def write_report(
    labels: NDArray[np.int64],
    path: str | Path,
    *,
    features: Features | None = None,
    evidence: Evidence | None = None,
    images: ImageList | None = None,
    traits: NDArray[np.float32] | None = None,
    truth: NDArray[np.int64] | None = None,
    title: str = "Clusters",
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, float | int | None]:
    """Write the report and return its figures.

    Parameters
    ----------
    labels : int64 (n,)
        The clustering; -1 is in no cluster (no face, or noise): counted as left out, not as people.
    path : str or Path
        `.html`.
    features : Features, optional
        (n, d); without them only sizes are shown.
    evidence : Evidence, optional
        Scores of the same faces (:func:`starfc.evidence.gather_evidence`), for everything about confidence.
    images : ImageList, optional
        Pictures of the faces; avatars are drawn for those without one.
    traits : float32 (n, N_TRAITS), optional
        What avatars are drawn from, in place of the embeddings (:func:`starfc.avatars.imagine_traits`).
    truth : int64 (n,), optional
        Known people, for the metrics and the worst errors.

    Returns
    -------
    dict
        As `starfc report --json`.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "report.html"
    >>> write_report(np.array([0, 0, 0, 1, 2]), path)["n_clusters"]
    3
    >>> "<script" in path.read_text()
    False
    """
    for name, given in (("features", features), ("truth", truth), ("images", images), ("traits", traits)):
        if given is not None and len(given) != len(labels):
            raise InputError(f"there are {len(given)} {name} for {len(labels)} labels; they must be of the same faces")
    if evidence is not None and len(evidence.scored.neighbors) != len(labels):
        raise InputError(f"there are scores of {len(evidence.scored.neighbors)} faces for {len(labels)} labels")
    artist = Artist(features, images, traits, seed)
    subject = _examine(labels, features, evidence, truth, artist, progress)
    sections = [
        _draw_tiles(subject), _draw_figures(subject), _draw_centres(subject, seed), _draw_errors(subject),
        _draw_loose_clusters(subject), _draw_near_pairs(subject),
    ]  # fmt: skip
    template = Template((Path(__file__).parent / "pages" / "report.html").read_text(encoding="utf-8"))
    page = template.substitute(
        title=escape(title), body="".join(sections), version=__version__, settings=_name_settings(subject)
    )
    with replacing(Path(path)) as aside:
        aside.write_text(page, encoding="utf-8")
    return summarise(subject.groups, subject.confidence, subject.evaluation)


def summarise(
    groups: Groups, confidence: NDArray[np.float32] | None, evaluation: Evaluation | None
) -> dict[str, float | int | None]:
    """Return the figures of a clustering for JSON."""
    is_person = groups.ids >= 0
    sizes = groups.sizes[is_person]
    if confidence is not None:
        confidence = confidence[is_person[groups.codes]]
    return {
        "n": len(groups.codes),
        "n_clusters": len(sizes),
        "n_singletons": int((sizes == 1).sum()),
        "largest": int(sizes.max(initial=0)),
        "median_size": float(np.median(sizes)) if len(sizes) else 0.0,
        "n_left_out": int((~is_person).sum()),
        "mean_confidence": None if confidence is None or not len(confidence) else round(float(confidence.mean()), 4),
        "pairwise_f": None if evaluation is None else evaluation.pairwise.f,
        "bcubed_f": None if evaluation is None else evaluation.bcubed.f,
    }


def _examine(
    labels: NDArray[np.int64],
    features: Features | None,
    evidence: Evidence | None,
    truth: NDArray[np.int64] | None,
    artist: Artist,
    progress: Progress,
) -> _Subject:
    """Measure whatever the given inputs allow."""
    groups = group_faces(labels)
    shapes = measure_shapes(features, groups, progress=progress) if features is not None else None
    confidence = pairs = None
    if evidence is not None:
        confidence = measure_confidence(evidence.scored, groups, tau1=evidence.tau1)
        if shapes is not None:
            pairs = find_pairs(evidence.scored, groups, shapes.sums)
    evaluation = evaluate(truth, labels) if truth is not None else None
    return _Subject(groups, features, evidence, shapes, confidence, pairs, truth, evaluation, artist)


def _name_settings(subject: _Subject) -> str:
    """Say how the scores behind the figures were made."""
    if subject.evidence is None:
        return "no scores given"
    used = subject.evidence.settings
    tau2 = "none" if used.tau2 is None else f"{used.tau2:.3g}"
    return f"scores: {used.scorer}, k = {used.k}, τ1 = {subject.evidence.tau1:.3g}, τ2 = {tau2}"


def _draw_tiles(subject: _Subject) -> str:
    """Draw the key figures."""
    figures = summarise(subject.groups, subject.confidence, subject.evaluation)
    tiles = [
        (f"{figures['n']:,}", "faces"),
        (f"{figures['n_clusters']:,}", "clusters"),
        (f"{figures['n_singletons']:,}", "faces alone"),
        (f"{figures['largest']:,}", "largest cluster"),
    ]
    if figures["n_left_out"]:
        tiles.append((f"{figures['n_left_out']:,}", "left out, in no cluster"))
    if subject.confidence is not None and len(confidence := subject.confidence[subject.is_counted]):
        tiles.append((f"{float((confidence < 0.5).mean()):.1%}", "faces in doubt"))
    if subject.evaluation is not None:
        tiles += [
            (f"{subject.evaluation.pairwise.f:.3f}", "pairwise F"),
            (f"{subject.evaluation.bcubed.f:.3f}", "BCubed F"),
        ]
    drawn = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in tiles)
    return f'<section class="tiles">{drawn}</section>'


def _draw_figures(subject: _Subject) -> str:
    """Draw sizes, scores, intimacy and confidence."""
    sizes, counts = np.unique(subject.groups.sizes[subject.is_person], return_counts=True)
    plot = draw_log_dots(sizes.astype(np.float64), counts.astype(np.float64), label="faces in a cluster")
    figures = [("How large clusters are", plot, "clusters of each size, both axes logarithmic")]
    if subject.evidence is not None:
        figures += _draw_score_figures(subject, subject.evidence)
    if subject.confidence is not None:
        edges = np.linspace(0, 1, 41)
        bars = np.histogram(subject.confidence[subject.is_counted], edges)[0]
        plot = draw_histogram(edges, {"faces": (bars, "#577590")}, label="confidence", logarithmic=True)
        figures.append(
            (
                "How sure each face is",
                plot,
                "a logarithmic count; below 0.5 another cluster has a nearer face than its own",
            )
        )
    drawn = "".join(
        f"<figure><figcaption><b>{name}</b><br>{note}</figcaption>{plot}</figure>" for name, plot, note in figures
    )
    return f'<section class="figures">{drawn}</section>'


def _draw_score_figures(subject: _Subject, evidence: Evidence) -> list[tuple[str, str, str]]:
    """Draw the distributions of edge scores and of node intimacy, each cut into right and wrong as far as is known."""
    belongs = subject.truth if subject.truth is not None else subject.groups.ids[subject.groups.codes]
    names = ("same person", "different people") if subject.truth is not None else ("same cluster", "different clusters")
    neighbors, scores = evidence.scored.neighbors, evidence.scored.scores
    low = float(min(0.0, scores.min(initial=0)))
    edges = np.linspace(low, 1.0, 51)
    counts = _count_edges(neighbors, scores, belongs, edges)
    series = {names[0]: (counts[0], _WITHIN), names[1]: (counts[1], _BETWEEN)}
    marks = {"τ1": evidence.tau1} if evidence.settings.tau1 is not None else {}
    plot = draw_histogram(edges, series, label="edge score", marks=marks)
    figures = [("Scores of neighbours", plot, "edges of the kNN graph; those right of τ1 are kept")]
    graph = parse_edges(evidence.scored, evidence.settings.tau1)
    intimacy = measure_intimacy(graph, aggregate=evidence.settings.aggregate)
    sources = np.repeat(belongs, np.diff(graph.offsets))
    same, known = sources == belongs[graph.targets], (sources >= 0) & (belongs[graph.targets] >= 0)
    edges = np.linspace(0, 1, 41)
    series = {
        names[0]: (np.histogram(intimacy[same & known], edges)[0], _WITHIN),
        names[1]: (np.histogram(intimacy[~same & known], edges)[0], _BETWEEN),
    }
    tau2 = evidence.settings.tau2
    note = "of the edges that passed τ1" + ("; τ2 is not used" if tau2 is None else "; those right of τ2 are kept")
    plot = draw_histogram(edges, series, label="node intimacy", marks={} if tau2 is None else {"τ2": tau2})
    figures.append(("Common neighbours", plot, note))
    return figures


def _count_edges(
    neighbors: NDArray[np.int32], scores: NDArray[np.float32], belongs: NDArray[np.int64], edges: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Count the edges per bin of score, those within and those between people, block by block."""
    counts = np.zeros((2, len(edges) - 1), dtype=np.int64)
    for start in range(0, len(neighbors), 1 << 16):
        block = slice(start, start + (1 << 16))
        there = (neighbors[block] >= 0) & (belongs[block, None] >= 0) & (belongs[neighbors[block]] >= 0)
        same = belongs[block, None] == belongs[neighbors[block]]
        counts[0] += np.histogram(scores[block][there & same], edges)[0]
        counts[1] += np.histogram(scores[block][there & ~same], edges)[0]
    return counts


def _draw_centres(subject: _Subject, seed: int) -> str:
    """Draw the map of the centres of the largest clusters."""
    people = np.flatnonzero(subject.is_person)
    if subject.shapes is None or len(people) < 4:
        return ""
    sizes = subject.groups.sizes
    shown = people[np.argsort(-sizes[people], kind="stable")[:_MAPPED]]
    places = place_centres(subject.shapes.sums[shown], seed=seed)
    titles = [f"cluster {subject.groups.ids[c]}: {sizes[c]} faces" for c in shown]
    note = f"the {len(shown)} largest" if len(shown) < len(people) else "all"
    return (
        '<section class="figures"><figure class="wide"><figcaption><b>A map of the centres</b><br>'
        f"{note} clusters by t-SNE; near dots look alike; larger and darker: more faces</figcaption>"
        f"{draw_map(places, sizes[shown], titles)}</figure></section>"
    )


def place_centres(sums: NDArray[np.float32], *, seed: int = 0) -> NDArray[np.float64]:
    """Lay out cluster centres (m, d) in the plane by t-SNE, float64 (m, 2); near centres come to lie near."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    centres = sums / np.where(norms > 0, norms, 1)
    if np.ptp(centres, axis=0).max() < 1e-6:  # nothing to tell apart
        return np.zeros((len(sums), 2))
    perplexity = min(20.0, (len(sums) - 1) / 3)
    with threadpool_limits(limits=1):  # in thousands of short parallel sections threads mostly wait for each other
        layout = TSNE(perplexity=perplexity, init="random", max_iter=500, random_state=seed, n_jobs=1)
        return np.asarray(layout.fit_transform(centres), dtype=np.float64)


def _draw_cluster(subject: _Subject, cluster: int, note: str) -> str:
    """Draw a cluster's line: what it is, and faces from the most to the least typical."""
    members = subject.groups.members(cluster)
    if subject.shapes is not None:
        members = members[np.argsort(-subject.shapes.closeness[members], kind="stable")]
    if len(members) > _SHOWN_FACES:  # the typical ones and the outliers
        members = np.concatenate((members[: _SHOWN_FACES // 3], members[-(_SHOWN_FACES - _SHOWN_FACES // 3) :]))
    name = f"cluster {subject.groups.ids[cluster]}"
    size = int(subject.groups.sizes[cluster])
    return (
        f'<div class="cluster"><p><b>{name}</b> {size} face{"s" * (size != 1)}{note}</p>'
        f"{subject.artist.draw(members)}</div>"
    )


def _draw_loose_clusters(subject: _Subject) -> str:
    """Draw the clusters whose faces are least alike, larger ones first among equals."""
    if subject.shapes is None:
        return ""
    eligible = np.flatnonzero(subject.groups.sizes >= 3)
    worst = eligible[np.argsort(subject.shapes.cohesion[eligible], kind="stable")][:_SHOWN_CLUSTERS]
    if not len(worst):
        return ""
    sure = average_by_cluster(subject.confidence, subject.groups) if subject.confidence is not None else None
    drawn = [
        _draw_cluster(
            subject,
            int(c),
            f" · cohesion {subject.shapes.cohesion[c]:.2f}"
            + (f" · confidence {sure[c]:.2f}" if sure is not None else ""),
        )
        for c in worst
    ]
    return _section(
        "The least cohesive clusters",
        "Mean cosine of two of their faces; three typical ones, then the outliers. Look here for two people in one.",
        drawn,
    )


def _draw_near_pairs(subject: _Subject) -> str:
    """Draw the pairs of clusters that are most worth a look."""
    if subject.pairs is None or subject.evidence is None or not len(subject.pairs):
        return ""
    pairs, sizes = subject.pairs, subject.groups.sizes
    a, b = sizes[pairs.first], sizes[pairs.second]
    apart = np.zeros(len(pairs), dtype=bool)
    traits = make_traits(
        pairs.link, pairs.strongest, np.minimum(a, b), tau1=subject.evidence.tau1, threshold=subject.evidence.threshold
    )
    worth = value_questions(predict_same(traits, apart, History()), apart, a, b)
    worth[~(subject.is_person[pairs.first] & subject.is_person[pairs.second])] = -np.inf
    best = np.argsort(-worth, kind="stable")[:_SHOWN_CLUSTERS]
    best = best[worth[best] > -np.inf]
    drawn = [
        f'<div class="pair"><p>mean cosine <b>{pairs.link[p]:.2f}</b>, strongest edge {pairs.strongest[p]:.2f}</p>'
        f"{_draw_cluster(subject, int(pairs.first[p]), '')}{_draw_cluster(subject, int(pairs.second[p]), '')}</div>"
        for p in best
    ]
    return _section(
        "Pairs of clusters that may be one person",
        "The nearest ones, those first whose merging would change most. Look here for one person in two.",
        drawn,
    )


def _draw_errors(subject: _Subject) -> str:
    """Draw the metrics and the worst errors, where the truth is known."""
    if subject.truth is None or subject.evaluation is None:
        return ""
    rows = "".join(
        f"<tr><th>{name}</th><td>{score.precision:.4f}</td><td>{score.recall:.4f}</td><td>{score.f:.4f}</td></tr>"
        for name, score in (("pairwise", subject.evaluation.pairwise), ("BCubed", subject.evaluation.bcubed))
    )
    n_alone = subject.evaluation.n_unassigned
    left_out = f"; {n_alone:,} left out, which count as people alone in these scores" if n_alone else ""
    table = (
        '<div class="cluster"><table><tr><th></th><th>precision</th><th>recall</th><th>F</th></tr>'
        f'{rows}</table><p class="note">NMI {subject.evaluation.nmi:.4f};'
        f" {subject.evaluation.n_clusters - subject.evaluation.n_unassigned:,} clusters for"
        f" {subject.evaluation.n_true:,} people{left_out}</p></div>"
    )
    mixed = [_draw_mixed(subject, cluster, count) for cluster, count in find_mixed(subject.groups, subject.truth)]
    split = [_draw_split(subject, person, count) for person, count in find_split(subject.groups, subject.truth)]
    return (
        _section("Against the truth", "", [table])
        + _section("Clusters that mix most people", "Wrong pairs they hold, a row of faces for each person.", mixed)
        + _section("People split most", "Right pairs that were missed, a row of faces for each cluster.", split)
    )


def _draw_mixed(subject: _Subject, cluster: int, count: int) -> str:
    """Draw the people of a mixed cluster."""
    members = subject.groups.members(cluster)
    size = len(members)
    head = f"<p><b>cluster {subject.groups.ids[cluster]}</b> {size} faces · {count:,} wrong pairs</p>"
    return f'<div class="cluster">{head}{_draw_rows(subject, members, subject.truth, "person")}</div>'


def _draw_split(subject: _Subject, person: int, count: int) -> str:
    """Draw the clusters of a split person."""
    members = np.flatnonzero(subject.truth == person)
    labels = subject.groups.ids[subject.groups.codes]
    head = f"<p><b>person {person}</b> {len(members)} faces · {count:,} missed pairs</p>"
    return f'<div class="cluster">{head}{_draw_rows(subject, members, labels, "cluster")}</div>'


def _draw_rows(
    subject: _Subject, members: NDArray[Any], belongs: NDArray[np.int64] | None, what: str
) -> str:  # fmt: skip
    """Draw the four largest groups among the members, a line each."""
    assert belongs is not None
    values, counts = np.unique(belongs[members], return_counts=True)
    parts = []
    for place in np.argsort(-counts, kind="stable")[:4]:
        faces = members[belongs[members] == values[place]][: _SHOWN_FACES - 1]
        who = f"{what} {values[place]}" if values[place] >= 0 else "left out" if what == "cluster" else "unknown"
        parts.append(f"<p class='note'>{who}: {counts[place]}</p>{subject.artist.draw(faces)}")
    rest = len(values) - 4
    return "".join(parts) + (f"<p class='note'>and {rest} more</p>" if rest > 0 else "")


def _section(title: str, note: str, drawn: list[str]) -> str:
    """Put drawn parts under a heading; nothing if there are none."""
    if not drawn:
        return ""
    return f'<section><h2>{title}</h2><p class="note">{note}</p><div class="list">{"".join(drawn)}</div></section>'
