"""Worlds: synthetic collections of faces as different as real ones are. Used to train and to test the shipped model.

    python benchmarks/worlds.py 0 10                     # print what some worlds are like

`draw_world(seed)` gives features, labels and facts. All that differs between collections is drawn anew for each world:
dimension and spectrum of the embedder, how far off centre it is, populations and how narrow each of them is, groups and
families of look-alikes, crowds whom the embedder hardly tells apart (babies, bad scans), how people vary (looks, age,
not at all), noise and its spread over pictures and people, blurred pictures, copies, wrong labels, and how many faces
people have (1 to 500; singletons from none to nearly all). In some, people are alike as real ones are. A face is

    x = normalise(offset + blur(normalise(identity + look + pose + noise))).

Nothing here is fitted to a particular data set; ranges were chosen wide around what the three real sets show (cosines
of one person .4 to .85, standard deviation of strangers' cosines .06 to .15, how often strangers are much alike).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_FACES = 500
Collection = tuple[NDArray[np.float32], NDArray[np.int64], dict[str, Any]]  # features, labels, facts
SIZE_KINDS = ("equal", "lognormal", "zipf", "singletons", "giants", "few", "pairs")
_SIZE_ODDS = (0.14, 0.2, 0.18, 0.2, 0.08, 0.1, 0.1)
_N_LIKENESSES = 6  # parts that people may have in common with a few others
_DIMS, _DIM_ODDS = (64, 96, 128, 192, 256, 384, 512), (0.08, 0.06, 0.26, 0.1, 0.2, 0.1, 0.2)


@dataclass
class _Draw:
    """A world in the making: its generator, its spectrum, and the facts drawn so far."""

    rng: np.random.Generator
    dim: int
    variances: NDArray[np.float64]
    has_crowds: bool
    facts: dict[str, Any] = field(default_factory=dict)

    def uniform(self, name: str, low: float, high: float) -> float:
        """Draw a fact."""
        self.facts[name] = float(self.rng.uniform(low, high))
        return float(self.facts[name])

    def normals(
        self, n: int, variances: NDArray[np.float64] | None = None, rng: np.random.Generator | None = None
    ) -> NDArray[np.float32]:
        """Draw n vectors with the spectrum of identities, or another, and by another generator."""
        scale = np.sqrt(self.variances if variances is None else variances).astype(np.float32)
        return (rng or self.rng).standard_normal((n, self.dim), dtype=np.float32) * scale


def draw_small_world(seed: int, *, alike: bool = False) -> Collection:
    """Draw a collection of 60 to 3,000 faces; in one of ten nobody has a second face."""
    rng = np.random.default_rng([seed, 78])
    n = int(np.exp(rng.uniform(np.log(60), np.log(3000))))
    return draw_world(seed, n, sizes=np.ones(n, dtype=np.int64) if rng.random() < 0.1 else None, alike=alike)


def draw_crowded_world(seed: int, *, alike: bool = False) -> Collection:
    """Draw a collection of 60 to 3,000 faces that 1 to 20 people fill, up to a half that are of people seen once."""
    rng = np.random.default_rng([seed, 79])
    n = int(np.exp(rng.uniform(np.log(60), np.log(3000))))
    n_once = int(rng.choice([0, rng.uniform(0, 0.5)]) * n)
    shares = rng.dirichlet(np.full(int(np.exp(rng.uniform(0, np.log(20)))), 1.5))
    sizes = np.maximum(1, np.rint((n - n_once) * shares)).astype(np.int64)
    sizes = np.concatenate((sizes, np.ones(n_once, dtype=np.int64)))
    return draw_world(seed, n, sizes=sizes, alike=alike)


def draw_sparse_world(seed: int, *, alike: bool = False) -> Collection:
    """Draw a collection of 300 to 9,000 faces of people of whom few, none to a third, have more than one."""
    rng = np.random.default_rng([seed, 80])
    n = int(np.exp(rng.uniform(np.log(300), np.log(9000))))
    has_more = rng.random(n) < rng.choice([0.0, 0.01, 0.03, 0.1, 0.3], p=[0.1, 0.2, 0.25, 0.25, 0.2])
    sizes = np.where(has_more, 1 + rng.geometric(rng.uniform(0.2, 1), n), 1)
    sizes = sizes[: int(np.searchsorted(np.cumsum(sizes), n)) + 1].astype(np.int64)
    return draw_world(seed, n, sizes=sizes, alike=alike)


def draw_gathered_world(seed: int) -> Collection:
    """Draw 1 to 19 people with 20 to 500 faces among 60 to 6,000 who have one, or 20 to 2,000 who have a few."""
    rng = np.random.default_rng([seed, 85])
    many = _draw_many(rng, 20, 20, MOST_FACES)
    n_others = int(np.exp(rng.uniform(np.log(60), np.log(6000))))
    if rng.random() < 0.25:
        others = rng.integers(1, 6, n_others // 3)
    else:
        others = np.where(rng.random(n_others) < rng.choice([0.0, 0.02, 0.1], p=[0.5, 0.25, 0.25]), 2, 1)
    sizes = np.concatenate((many, others))
    return draw_world(seed, sizes=sizes, alike=bool(rng.random() < 0.7), various=bool(rng.random() < 0.25))


def draw_uneven_world(seed: int) -> Collection:
    """Draw 1 to 9 people with 20 to 500 faces among 60 to 3,000 who have a few, or 8 to 301 people of all kinds."""
    rng = np.random.default_rng([seed, 87])
    n_others = int(np.exp(rng.uniform(np.log(60), np.log(3000))))
    if rng.random() < 0.7:
        sizes = np.concatenate((_draw_many(rng, 10, 20, MOST_FACES), rng.integers(2, rng.integers(4, 9), n_others)))
    else:
        sizes = np.exp(rng.uniform(np.log(2), np.log(rng.uniform(30, 300)), n_others // 10 + 2))
    alike, various = bool(rng.random() < 0.7), bool(rng.random() < 0.25)
    return draw_world(seed, sizes=sizes.astype(np.int64), alike=alike, various=various)


def draw_burst_world(seed: int) -> Collection:
    """Draw a collection of pictures one in twenty to most of which were taken several times in a row."""
    rng = np.random.default_rng([seed, 86])
    kind = rng.choice(3, p=[0.6, 0.2, 0.2])
    rows, labels, facts = (draw_world, draw_small_world, draw_sparse_world)[kind](seed, alike=bool(rng.random() < 0.5))
    kept = rng.permutation(len(rows))[: int(np.exp(rng.uniform(np.log(100), np.log(3000))))]
    times = np.where(rng.random(len(kept)) < rng.uniform(0.05, 0.8), 1 + rng.geometric(rng.uniform(0.2, 0.8)), 1)
    drawn = np.repeat(kept, times)
    strength = np.repeat(_draw_differences(rng, len(kept), rows.shape[1]), times)[:, None]
    taken = _normalise(rows[drawn] + strength * rng.standard_normal((len(drawn), rows.shape[1])))
    order = rng.permutation(len(drawn))
    return taken[order], labels[drawn][order], facts | _count_faces(labels[drawn])


def draw_album_world(seed: int) -> Collection:
    """Draw 1 to 19 people with 10 to 200 faces among 60 to 6,000 who are there once; some pictures are there again.

    In three of four worlds nobody looks like a crowd: the people with many faces are the only dense groups. In half of
    the worlds one in two hundred to one in five pictures has a near-copy.
    """
    rng = np.random.default_rng([seed, 88])
    many = _draw_many(rng, 20, 10, 200)
    n_others = int(np.exp(rng.uniform(np.log(60), np.log(6000))))
    others = np.where(rng.random(n_others) < rng.choice([0.0, 0.02, 0.1]), 2, 1)
    sizes = np.concatenate((many, others))
    alike, various, has_crowds = bool(rng.random() < 0.7), bool(rng.random() < 0.25), bool(rng.random() < 0.25)
    rows, labels, facts = draw_world(seed, sizes=sizes, alike=alike, various=various, has_crowds=has_crowds)
    share = np.exp(rng.uniform(np.log(0.005), np.log(0.2))) if rng.random() < 0.5 else 0.0
    again = np.flatnonzero(rng.random(len(rows)) < share)
    strength = _draw_differences(rng, len(again), rows.shape[1])[:, None]
    copies = _normalise(rows[again] + strength * rng.standard_normal((len(again), rows.shape[1])))
    order = rng.permutation(len(rows) + len(again))
    labels = np.concatenate((labels, labels[again]))[order]
    return np.concatenate((rows, copies))[order], labels, facts | _count_faces(labels)


def _draw_many(rng: np.random.Generator, most_people: int, fewest: int, most: int) -> NDArray[np.int64]:
    """Draw how many faces each of fewer than `most_people` people has."""
    n_people = int(np.exp(rng.uniform(0, np.log(most_people))))
    return np.exp(rng.uniform(np.log(fewest), np.log(most), n_people)).astype(np.int64)


def _draw_differences(rng: np.random.Generator, n: int, dim: int) -> NDArray[np.float64]:
    """Draw by how much the pictures of one moment differ, for each number of a unit row."""
    return np.asarray(np.exp(rng.uniform(np.log(0.02), np.log(0.4), size=n)) / np.sqrt(dim))


def _count_faces(labels: NDArray[np.int64]) -> dict[str, Any]:
    """Return the facts of a collection that follow from its labels."""
    counts = np.unique(labels, return_counts=True)[1]
    return {"n": len(labels), "people": len(counts), "singletons": float((counts == 1).mean())}


def draw_alike_world(seed: int) -> Collection:
    """Draw a collection of any of these kinds in which people are more alike than chance."""
    rng = np.random.default_rng([seed, 81])
    kind = rng.choice(4, p=[0.45, 0.15, 0.15, 0.25])
    return (draw_world, draw_small_world, draw_crowded_world, draw_sparse_world)[kind](seed, alike=True)


def draw_various_world(seed: int) -> Collection:
    """Draw a collection of people who hardly look alike from one picture to the next; in half of them others do."""
    rng = np.random.default_rng([seed, 83])
    return draw_world(seed, alike=bool(rng.random() < 0.5), various=True)


def draw_world(
    seed: int,
    n_faces: int | None = None,
    *,
    sizes: NDArray[np.int64] | None = None,
    alike: bool = False,
    various: bool = False,
    has_crowds: bool = True,
) -> Collection:
    """Draw a collection.

    Parameters
    ----------
    seed : int
        Everything follows from it.
    n_faces : int, optional
        About how many rows; 1,000 to 9,000 by default.
    sizes : int64 (people,), optional
        How many faces each person has; drawn by default.
    alike : bool
        Whether people are more alike than chance makes them.
    various : bool
        Whether each looks different in many ways, so that two of their pictures may have little in common.
    has_crowds : bool
        Whether there may be crowds whom the embedder hardly tells apart, and looks that many share.

    Returns
    -------
    features : float32 (n, d)
        Unit rows in random order.
    labels : int64 (n,)
    facts : dict
    """
    rng = np.random.default_rng([seed, 77])
    n = n_faces or int(np.exp(rng.uniform(np.log(1000), np.log(9000))))
    dim = int(rng.choice(_DIMS, p=_DIM_ODDS))
    decay = min(max(28.0, rng.uniform(0.22, 0.8) * dim), rng.uniform(60, 140))
    variances = np.exp(-np.arange(dim) / decay)
    world = _Draw(rng, dim, variances / variances.sum(), has_crowds)
    sizes, kind = draw_sizes(rng, n) if sizes is None else (sizes, "given")
    labels = np.repeat(np.arange(len(sizes)), sizes)
    identities = _draw_identities(world, len(sizes))
    if alike:
        identities = _make_alike(world, identities, np.random.default_rng([seed, 82]))
    rows = identities[labels]
    rows += _draw_looks(world, labels, len(sizes))
    if various:
        rows += _draw_variety(world, labels, len(sizes), np.random.default_rng([seed, 84]))
    rows = _spoil(world, rows, labels, len(sizes))
    rows = _embed(world, rows, labels)
    if rng.random() < 0.3:
        wrong = rng.random(len(labels)) < world.uniform("wrong_labels", 0, 0.01)
        labels[wrong] = rng.integers(0, len(sizes), wrong.sum())
    order = rng.permutation(len(labels))
    facts = {"n": len(labels), "dim": dim, "people": len(sizes), "sizes": kind} | world.facts
    facts["singletons"] = float((sizes == 1).mean())
    return rows[order], labels[order].astype(np.int64), facts


def draw_sizes(rng: np.random.Generator, n: int) -> tuple[NDArray[np.int64], str]:
    """Draw how many faces each person has, n in all or a little more."""
    kind = str(rng.choice(SIZE_KINDS, p=_SIZE_ODDS))
    if kind == "equal":
        mean = np.exp(rng.uniform(np.log(3), np.log(300)))
        sizes = rng.poisson(mean, size=int(2 + n / mean))
    elif kind == "lognormal":
        median = np.exp(rng.uniform(np.log(2), np.log(60)))
        sizes = np.ceil(rng.lognormal(np.log(median), rng.uniform(0.4, 1.3), size=int(3 + n / median)))
    elif kind == "zipf":
        sizes = rng.zipf(rng.uniform(1.6, 2.6), size=n)
    elif kind == "singletons":
        share, median = rng.uniform(0.3, 0.97), np.exp(rng.uniform(np.log(2), np.log(30)))
        sizes = np.where(rng.random(n) < share, 1, np.ceil(1 + rng.lognormal(np.log(median), 0.7, size=n)))
    elif kind == "giants":
        sizes = np.minimum(rng.zipf(2.0, size=n), 60)
        sizes[:3] = rng.integers(200, MOST_FACES, 3)
    elif kind == "few":
        sizes = rng.poisson(rng.integers(60, 400), size=max(4, n // 60))
    else:
        sizes = rng.integers(2, rng.integers(3, 8), size=n)
    sizes = np.clip(sizes, 1, MOST_FACES).astype(np.int64)
    return sizes[: max(3, int(np.searchsorted(np.cumsum(sizes), n)) + 1)], kind


def _draw_identities(world: _Draw, n_people: int) -> NDArray[np.float32]:
    """Draw who they are: population, group, family and the person's own part."""
    rng, dim = world.rng, world.dim
    n_populations = int(world.uniform("populations", 1, 14))
    narrow = world.uniform("narrowness", 0, 0.8) * rng.random(n_populations) ** 1.5
    spectra = world.variances * np.exp(1.3 * narrow[:, None] * rng.normal(size=(n_populations, dim)))
    spectra /= spectra.sum(axis=1, keepdims=True)
    family_size = int(rng.integers(2, 9))
    family = rng.permutation(n_people) // family_size
    n_families = int(family.max()) + 1
    group, likeness = _draw_groups(world, n_families, family_size)
    shares = rng.dirichlet(np.ones(n_populations))
    group_population = rng.choice(n_populations, size=len(likeness), p=shares)
    family_population = group_population[group]
    population = family_population[family]
    kinship = world.uniform("kinship", 0, 0.75) * rng.random(n_people) ** rng.choice([1.0, 2.0, 4.0])
    own = world.normals(n_people) * np.sqrt(spectra / world.variances)[population]
    kin = (world.normals(n_families) * np.sqrt(spectra / world.variances)[family_population])[family]
    person = np.sqrt(kinship)[:, None] * kin + np.sqrt(1 - kinship)[:, None] * own
    centres = world.normals(len(likeness)) * np.sqrt(spectra / world.variances)[group_population]
    alike = likeness[group[family]][:, None]
    averages = world.normals(n_populations) * np.sqrt(world.uniform("population_energy", 0, 0.25))
    rows = np.sqrt(1 - alike) * person + np.sqrt(alike) * centres[group[family]] + averages[population]
    return np.asarray(rows, dtype=np.float32)


def _make_alike(world: _Draw, identities: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.float32]:
    """Make people more alike than chance, at all heights: by marked traits, and by parts that a few have in common.

    Of independent people who are there once, three in ten have a best neighbour that is nearer than one stranger is
    expected to be; of the people of three real sets, six to eight in ten.
    """
    n_people = len(identities)
    marked = world.facts["traits"] = rng.uniform(0.4, 1.1)
    shared = world.facts["shared_parts"] = rng.uniform(0, 1.5)
    # Less the square, which keeps the mean energy of each number.
    rows = identities * np.exp(marked * rng.standard_normal(identities.shape, dtype=np.float32) - marked**2)
    energies = rng.random((_N_LIKENESSES, n_people)) ** 2 * 2 * shared / _N_LIKENESSES
    energies /= np.maximum(1, energies.sum(axis=0) / 0.9)  # a tenth is everybody's own
    rows *= np.sqrt(1 - energies.sum(axis=0))[:, None]
    for energy in energies:
        n_groups = int(1 + n_people / np.exp(rng.uniform(np.log(2), np.log(200))))
        group = np.searchsorted(np.sort(rng.random(n_groups - 1)), rng.random(n_people))
        rows += np.sqrt(energy)[:, None] * world.normals(n_groups, rng=rng)[group]
    return np.asarray(rows, dtype=np.float32)


def _draw_groups(world: _Draw, n_families: int, family_size: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Put families in groups; return each family's group and how much the people of a group have in common."""
    rng = world.rng
    n_groups = max(1, int(n_families * family_size / np.exp(rng.uniform(np.log(15), np.log(400)))))
    shares = rng.pareto(1.5, n_groups) + 0.1
    group = rng.choice(n_groups, size=n_families, p=shares / shares.sum())
    likeness = world.uniform("group_likeness", 0, 0.35) * rng.random(n_groups) ** 2
    share = np.bincount(group, minlength=n_groups) / n_families
    likeness = np.minimum(likeness, 0.02 / np.maximum(share, 1e-9))  # large groups are loose
    n_crowds = int(rng.integers(0, 4)) * world.has_crowds
    for crowd in range(n_crowds):
        members = rng.random(n_families) < np.exp(rng.uniform(np.log(0.003), np.log(0.08)))
        group[members] = n_groups + crowd
    world.facts["crowds"] = n_crowds
    return group, np.concatenate([likeness, rng.uniform(0.15, 0.65, n_crowds)])


def _draw_looks(world: _Draw, labels: NDArray[np.int64], n_people: int) -> NDArray[np.float32]:
    """Draw how they look in each picture: one of a few looks or an age, and a pose."""
    rng, n = world.rng, len(labels)
    style = str(rng.choice(["looks", "ages", "none"], p=[0.5, 0.35, 0.15]))
    world.facts["style"] = style
    energy = world.uniform("look_energy", 0, 0.8) * rng.uniform(0.3, 1.7, n_people)
    pose = rng.uniform(-1, 1, size=(n, 3)) * np.sqrt(world.uniform("pose_energy", 0, 0.25))
    rows = (pose @ world.normals(3)).astype(np.float32)
    strength = np.sqrt(energy)[labels, None].astype(np.float32)
    if style == "looks":
        n_looks = int(rng.integers(2, 6))
        first = (rng.random(n) ** 2 * n_looks).astype(np.int64)
        second = rng.integers(0, n_looks, n)
        drift = (0.6 * rng.random(n) ** 2)[:, None]
        looks = world.normals(n_people * n_looks)
        rows += strength * ((1 - drift) * looks[labels * n_looks + first] + drift * looks[labels * n_looks + second])
    elif style == "ages":
        angle = (rng.beta(0.8, 0.8, size=n) * np.pi * rng.uniform(0.4, 1.2))[:, None]
        young, old = world.normals(n_people), world.normals(n_people)
        rows += strength * (np.cos(angle) * young[labels] + np.sin(angle) * old[labels])
        rows += strength * 0.4 * np.cos(angle) * world.normals(1)  # age moves everybody the same way, too
    return rows


def _draw_variety(
    world: _Draw, labels: NDArray[np.int64], n_people: int, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Draw by how much each picture differs along a few axes of the person's own, in part the same for all."""
    n_axes = int(rng.integers(2, 7))
    world.facts["variety"] = energy = float(rng.uniform(0.3, 1.6))
    shared = rng.uniform(0, 0.5)
    strength = np.sqrt(energy / n_axes * np.exp(0.5 * rng.normal(size=n_people)))[labels]
    rows = np.zeros((len(labels), world.dim), dtype=np.float32)
    for _ in range(n_axes):
        own, common = world.normals(n_people, rng=rng), world.normals(1, rng=rng)
        axis = np.sqrt(1 - shared) * own + np.sqrt(shared) * common
        rows += (strength * rng.standard_normal(len(labels)))[:, None].astype(np.float32) * axis[labels]
    return rows


def _spoil(world: _Draw, rows: NDArray[np.float32], labels: NDArray[np.int64], n_people: int) -> NDArray[np.float32]:
    """Add what is wrong with pictures: looks that many share, noise of varied strength, blur."""
    rng, n = world.rng, len(labels)
    if rng.random() < 0.5 and world.has_crowds:  # some pictures of a person are hard to tell from others of their kind
        shared = rng.random(n) < world.uniform("shared_looks", 0, 0.15)
        weight = np.where(shared, rng.uniform(0.1, 0.75, n), 0)[:, None]
        rows = np.sqrt(1 - weight) * rows + np.sqrt(weight) * world.normals(3)[rng.integers(0, 3, n)]
    flatter = np.sqrt(world.variances)
    noise = np.exp(rng.uniform(np.log(0.15), np.log(1.5)))
    world.facts["noise"] = float(noise)
    quality = np.exp(rng.normal(size=n) * world.uniform("quality_spread", 0.1, 0.8))
    person = np.exp(rng.normal(size=n_people) * world.uniform("person_spread", 0, 0.5))[labels]
    strength = np.sqrt(noise * quality / quality.mean() * person)[:, None]
    rows = _normalise(rows + strength * world.normals(n, flatter / flatter.sum()))
    blurred = rng.random(n) < world.uniform("blurred", 0, 0.06)
    weight = np.where(blurred, rng.uniform(0.1, 0.7, n), 0)[:, None] * rng.random()
    points = _normalise(world.normals(3))
    return (1 - weight) * rows + weight * points[rng.integers(0, rng.integers(1, 4), n)]


def _embed(world: _Draw, rows: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Move the embedder off its centre, and make copies of some pictures."""
    rng = world.rng
    offset = world.uniform("offset", 0, 1.0 if rng.random() < 0.35 else 0.05)
    rows = _normalise(_normalise(rows) + np.sqrt(offset) * _normalise(rng.normal(size=(1, world.dim))))
    if rng.random() < 0.3:
        copies = np.flatnonzero(rng.random(len(rows)) < world.uniform("copies", 0, 0.15))
        copied = np.maximum(copies - 1, 0)  # rows of a person stand together here
        same = labels[copies] == labels[copied]
        noise = 0.05 / np.sqrt(world.dim) * rng.normal(size=(int(same.sum()), world.dim))
        rows[copies[same]] = rows[copied[same]] + noise
    return _normalise(rows)


def _normalise(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Scale rows to length one."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def main() -> None:
    """Print what worlds are like."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    options = parser.parse_args()
    for seed in range(options.first, options.last):
        _, _, facts = draw_world(seed)
        print(seed, {name: round(v, 3) if isinstance(v, float) else v for name, v in facts.items()})


if __name__ == "__main__":
    main()
