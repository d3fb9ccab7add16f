"""Drive an executor, and store each run as soon as it is finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uotpool_experiments.runs.executors.base import Executor, Failed, Finished, Progress, Started
from uotpool_experiments.runs.plan import unfinished
from uotpool_experiments.runs.progress import Display
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import RunSpec


@dataclass
class Outcome:
    """How a sweep ended."""

    finished: int = 0
    failed: int = 0
    interrupted: bool = False


def run(todo: Sequence[RunSpec], store: Store, executor: Executor, display: Display) -> Outcome:
    """Do the runs, and keep each as soon as it is finished.

    Ctrl-C stops the workers, and so does a store that cannot be written; finished runs are kept.
    """
    outcome = Outcome()
    with store.writing(), display:
        todo = unfinished(todo, store)  # another sweep may have done some since they were planned
        events = executor.run(todo)
        display.begin(len(todo), executor.workers)
        try:
            for event in events:
                spec = event.spec
                code = fingerprint(spec.task, spec.pooling)
                if isinstance(event, Started):
                    display.started(spec, event.others)
                elif isinstance(event, Progress):
                    display.progress(spec, event.done, event.total)
                else:
                    error = event.error if isinstance(event, Failed) else _save(event, code, store)
                    if error is None:
                        outcome.finished += 1
                        display.finished(spec)
                    else:
                        store.save_failure(spec, code, error, event.facts)
                        outcome.failed += 1
                        display.failed(spec, error)
        except KeyboardInterrupt:
            outcome.interrupted = True
        finally:
            events.close()  # type: ignore[attr-defined]
    return outcome


def _save(event: Finished, code: str, store: Store) -> str | None:
    """Keep the result, or say why it cannot be kept."""
    if event.code != code:
        return "the code of this run changed after the sweep had started; start it again"
    try:
        store.save(event.spec, code, event.result, event.facts, event.cpu_seconds)
    except (TypeError, ValueError) as error:  # JSON has no NaN, for example
        return f"a result that cannot be stored: {error}"
    return None
