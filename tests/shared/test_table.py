import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bits import DTYPES
from shared.errors import IntegrityError
from shared.table import longest, parse, to_text
from shared.types import TensorSpec

shapes = st.lists(st.integers(0, 1 << 59), max_size=3).map(tuple)


def test_a_table_survives() -> None:
    table = [(TensorSpec("gr\u00f6\u00dfe", "BF16", (3, 4)), 12), (TensorSpec("scalar", "F32", ()), 1)]
    assert parse(to_text(table)) == table
    assert parse(to_text(table).encode()) == table
    assert parse(to_text([])) == []


def test_a_table_is_rows_of_name_dtype_shape_and_count() -> None:
    assert to_text([(TensorSpec("a", "I8", (2, 3)), 5)]) == '[["a","I8",[2,3],5]]'


@given(st.lists(st.builds(TensorSpec, st.text(max_size=9), st.sampled_from(list(DTYPES)), shapes), max_size=4))
def test_a_table_has_no_more_bytes_than_one_of_all_tensors_in_the_widest_json(specs: list[TensorSpec]) -> None:
    table = [(spec, spec.numel) for spec in specs]
    widest = json.dumps([[spec.name, spec.dtype, spec.shape, count] for spec, count in table])
    assert max(len(to_text(table).encode()), len(widest)) <= longest(specs)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "dict in the place of a list"),
        (b"\xff", "utf-8"),
        ('[["a","I8",[2],3]]', "lists 3 changes of tensor 'a', which has 2 elements"),
        ('[["a","I8",[2],1],["a","I8",[2],1]]', "lists tensor 'a' twice"),
        (f'[["a","I8",[{",".join(["1"] * 65)}],1]]', "no readable table"),
        (f'[["a","I8",[{",".join([4000 * "9"] * 300)}],1]]', "no readable table"),
        (f'[["{1001 * "a"}","I8",[1],1]]', "a name of 1001 characters"),
    ],
)
def test_what_is_no_table_is_an_integrity_error(text: str | bytes, says: str) -> None:
    with pytest.raises(IntegrityError, match=says) as caught:
        parse(text)
    assert len(str(caught.value)) < 400
