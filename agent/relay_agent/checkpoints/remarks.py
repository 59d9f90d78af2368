"""What an operator should hear, once, of saves that are not published as they lie in the staging folder."""

from __future__ import annotations

from relay_agent.checkpoints.recorder import Recorder
from relay_agent.checkpoints.staging import DEMANDED, MARKER, StagingWatch
from relay_agent.process import say
from relaytui.wire.text import clean, sayable


class Remarks:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._unmarked = False  # whether that was said
        self._unfit: set[tuple[str, str]] = set()  # of which it was

    def make(self, watch: StagingWatch) -> None:
        """After a look. Nothing is moved: their trainer may still write to them."""
        if not self._unmarked and (waiting := watch.unmarked):
            self._unmarked = True
            why = DEMANDED if watch.demanded else "as others of this run had"
            words = f"{waiting[0]} has no {MARKER}, {why}: it is not published before it has"
            self._recorder.event("checkpoint.unmarked", words, {"name": waiting[0]})
            say(f"{words}; COMPLETE_MARKER=never says that the trainer writes none")
        for torn in watch.unfit():
            if (torn.name, torn.reason) not in self._unfit:
                self._unfit.add((torn.name, torn.reason))
                words = f"{torn.name} cannot be published as it lies there: {torn.reason}"
                self._recorder.event("checkpoint.unfit", words, {"name": torn.name})
                say(words)
        for name, words in watch.strays:
            words = clean(sayable(words), 500)
            self._recorder.event("checkpoint.unfit", words, {"name": clean(sayable(name), 128)})
            say(words)
