import pytest
import zstandard

from shared.errors import IntegrityError
from shared.frames import fold, unfold, unfold_text

CONTENT = b"content " * 100
SIZELESS = zstandard.ZstdCompressor(write_content_size=False).compress(CONTENT)


def test_content_survives() -> None:
    frame = fold(CONTENT)
    assert len(frame) < len(CONTENT)
    assert unfold({"x": frame}, "x", len(CONTENT)).tobytes() == CONTENT
    assert unfold_text({"x": frame}, "x", len(CONTENT)) == CONTENT


def test_a_stream_that_should_be_empty_may_be_missing() -> None:
    assert unfold({}, "x", 0).size == 0


@pytest.mark.parametrize("nbytes", [0, 1, len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_size_than_expected_is_an_integrity_error(nbytes: int) -> None:
    with pytest.raises(IntegrityError, match=f"'x' .*{nbytes} "):
        unfold({"x": fold(CONTENT)}, "x", nbytes)


def test_a_text_longer_than_what_is_read_is_never_unfolded() -> None:
    with pytest.raises(IntegrityError, match="'x' holds 800 bytes, at most 799 are read"):
        unfold_text({"x": fold(CONTENT)}, "x", 799)


@pytest.mark.parametrize("frame", [None, b"", b"x", fold(CONTENT)[:-1], SIZELESS])
def test_a_text_that_is_missing_or_no_whole_frame_is_an_integrity_error(frame: bytes | None) -> None:
    with pytest.raises(IntegrityError, match="'x'"):
        unfold_text({} if frame is None else {"x": frame}, "x", 10_000)
