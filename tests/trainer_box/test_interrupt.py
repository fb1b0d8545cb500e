"""One signal asks for a stop with a checkpoint, two are obeyed at once."""

import os
import signal
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from trainer_box.interrupt import Interrupt


def end_of_step(interrupt: Interrupt, folder: Path) -> TrainerControl:
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to=[])
    return interrupt.on_step_end(arguments, TrainerState(), TrainerControl(), model=None)


def test_without_a_signal_training_goes_on(tmp_path: Path) -> None:
    with Interrupt() as interrupt:
        control = end_of_step(interrupt, tmp_path)
    assert not interrupt.requested
    assert (control.should_save, control.should_training_stop) == (False, False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_saves_and_stops_after_the_step(
    number: signal.Signals, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Interrupt() as interrupt:
        os.kill(os.getpid(), number)
        control = end_of_step(interrupt, tmp_path)
    assert interrupt.requested
    assert (control.should_save, control.should_training_stop) == (True, True)
    assert "stopping after this step with a checkpoint; Ctrl-C again stops at once" in capfd.readouterr().out


def test_a_signal_that_ends_the_reader_of_the_output_too_still_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does in `... | tee log`."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as unread, Interrupt() as interrupt:
        monkeypatch.setattr("sys.stdout", unread)
        os.kill(os.getpid(), signal.SIGINT)
        control = end_of_step(interrupt, tmp_path)
        monkeypatch.undo()
    assert (control.should_save, control.should_training_stop) == (True, True)


def test_the_second_signal_is_obeyed_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()  # never reached in vain: the handler has raised before


def test_the_handlers_of_before_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupt():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
