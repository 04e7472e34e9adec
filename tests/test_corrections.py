import numpy as np
import pytest

from starfc.corrections import NOT_A_FACE, Book, Change, number_alone
from starfc.errors import InputError


def test_a_face_in_no_cluster_is_left_out():
    book = Book(np.array([3, -1, -1]))
    assert book.labels.tolist() == [3, NOT_A_FACE, NOT_A_FACE]
    assert book.members(NOT_A_FACE).tolist() == [1, 2]
    assert book.next_label == 4
    assert len(book.members(99)) == 0
    assert number_alone(np.array([3, -1, -1])).tolist() == [3, 4, 5]


def test_a_change_must_fit_and_says_what_it_touches():
    book = Book(np.array([0, 0, 1]))
    change = Change("moved", np.array([0], np.int32), np.array([0]), np.array([1]), names=((5, None, "Ann"),))
    book.apply(change)
    assert change.list_labels(9) == [0, 1, 5] and change.list_labels(1) == [0]
    with pytest.raises(InputError, match="does not fit"):
        book.apply(change)
    book.apply(change.reverse())
    assert book.labels.tolist() == [0, 0, 1] and book.names == {}


def test_kept_names_are_taken_back():
    book = Book(np.array([0, 0, 1]))
    change = Change("strictness", kept=((1, None, "Ann"),))
    book.apply(change)
    assert book.kept == {1: "Ann"}
    book.apply(change.reverse())
    assert book.kept == {}
