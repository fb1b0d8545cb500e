import pytest

from shared.errors import IntegrityError
from shared.table import parse, to_text
from shared.types import TensorSpec


def test_a_table_survives() -> None:
    table = [(TensorSpec("gr\u00f6\u00dfe", "BF16", (3, 4)), 12), (TensorSpec("scalar", "F32", ()), 1)]
    assert parse(to_text(table)) == table
    assert parse(to_text(table).encode()) == table
    assert parse(to_text([])) == []


def test_a_table_is_rows_of_name_dtype_shape_and_count() -> None:
    assert to_text([(TensorSpec("a", "I8", (2, 3)), 5)]) == '[["a","I8",[2,3],5]]'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "dict in the place of a list"),
        (b"\xff", "utf-8"),
        ('[["a","I8",[2],3]]', "lists 3 changes of tensor 'a', which has 2 elements"),
        ('[["a","I8",[2],1],["a","I8",[2],1]]', "lists tensor 'a' twice"),
    ],
)
def test_what_is_no_table_is_an_integrity_error(text: str | bytes, says: str) -> None:
    with pytest.raises(IntegrityError, match=says):
        parse(text)
