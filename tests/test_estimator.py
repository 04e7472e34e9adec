import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from starfc import StarFC
from starfc.errors import InputError


@parametrize_with_checks([StarFC(), StarFC(tau1=0.5, k=None)])
def test_scikit_learn_contract(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")  # without it the checks of array types skip themselves
    check(estimator)


def test_rows_of_zeros_belong_to_nobody():
    rows = np.repeat(np.eye(3), 4, axis=0)
    rows[5] = 0
    labels = StarFC(tau1=0.5).fit_predict(rows)
    assert labels.tolist() == [0, 0, 0, 0, 1, -1, 1, 1, 2, 2, 2, 2]
    with pytest.raises(InputError, match="not all zero"):
        StarFC().fit(np.zeros((5, 2)))
