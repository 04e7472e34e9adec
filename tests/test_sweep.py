import numpy as np
import pytest

import starfc
from starfc.errors import InputError
from starfc.metrics import evaluate
from starfc.plots import draw_sweep
from starfc.sweep import sweep_thresholds
from test_pipeline import clustered, two_people_and_a_stray
from test_score import random_model


@pytest.mark.parametrize("edges", ["directed", "mutual"])
def test_every_row_equals_a_run_of_its_own(edges):
    rows, truth = clustered(noise=0.9)
    clusters = starfc.cluster(rows, model=random_model(32, (16,)), k=10, edges=edges)
    grid = [float(value) for value in np.quantile(clusters.scored.scores, [0.2, 0.6])]
    table = sweep_thresholds(clusters.scored, clusters.settings, tau1=grid, tau2=[None, 0.3, 0.6], truth=truth)
    assert len(table) == 6
    for row in table:
        again = clusters.rethreshold(tau1=row.tau1, tau2=row.tau2)
        figures = evaluate(truth, again.labels)
        assert (row.n_clusters, row.largest) == (again.summary()["n_clusters"], again.summary()["largest"])
        assert row.pairwise_f == figures.pairwise.f and row.bcubed_f == figures.bcubed.f


def test_strays_find_their_place_in_a_sweep_as_in_a_run():
    settings, scored = two_people_and_a_stray()
    table = sweep_thresholds(scored, settings, tau1=[0.7, 0.9], tau2=[None])
    assert [(row.n_clusters, row.largest) for row in table] == [(2, 51), (3, 50)]


def test_without_labels_there_is_no_f():
    rows, _ = clustered()
    clusters = starfc.cluster(rows)
    (row,) = sweep_thresholds(clusters.scored, clusters.settings, tau1=[0.5], tau2=[None])
    assert row.pairwise_f is None and row.as_dict()["bcubed_f"] is None


@pytest.mark.parametrize("labelled", [True, False])
def test_the_picture_is_drawn(tmp_path, labelled):
    pytest.importorskip("matplotlib")
    rows, truth = clustered()
    clusters = starfc.cluster(rows)
    table = sweep_thresholds(
        clusters.scored, clusters.settings, tau1=[0.3, 0.5], tau2=[None, 0.5], truth=truth if labelled else None
    )
    draw_sweep(table, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("grid", [{"tau1": [0.5], "tau2": [0.3, 7.0]}, {"tau1": [0.5, 7.0], "tau2": [None]}])
def test_thresholds_out_of_range_are_refused(grid):
    clusters = starfc.cluster(clustered()[0])
    with pytest.raises(InputError, match=r"\(7.0\) must be between"):
        sweep_thresholds(clusters.scored, clusters.settings, **grid)
